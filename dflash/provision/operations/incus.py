"""An instance of Incus or LXD: created, configured, and running."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import DFlashError
from dflash.hosts.chain import Incus, Lxd
from dflash.provision.container import ContainerSpec, wanted_gpus, wanted_nodes
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts import incus, lxc, nodes
from dflash.provision.facts.incus import Devices, Instance
from dflash.provision.operation import Action, Change, Kept
from dflash.provision.operations import binds

_LIVE = ("limits.", "boot.", "user.")
"""Keys whose change a running instance takes; for others it must be stopped."""

STOP = '"$1" stop "$2" --timeout 60 || "$1" stop "$2" --force'
"""An init that knows no signal to shut down by would be waited for without end."""


@dataclass(frozen=True)
class Container:
    """The instance of an `incus:` or `lxd:` hop. Keys and devices that are not declared are left as they are; where
    GPUs are declared, it has those and no others."""

    hop: Incus | Lxd
    spec: ContainerSpec

    def facts(self) -> Sequence[Fact[Any]]:
        """The instance, and what of the host goes into it."""
        return (incus.instance(self.hop), incus.TOOLKIT, nodes.nodes(self.spec.devices), nodes.GPUS)

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        """Creation, configuration, devices, state. Raises DFlashError when the daemon does not answer, or the host
        lacks a device or NVIDIA's toolkit, which Incus and LXD take the driver's files by."""
        answer = known[incus.instance(self.hop)]
        if answer.error:
            cure = "start the daemon there, and see that this user may use it"
            raise DFlashError(answer.error, where=str(self.hop), cure=cure)
        if self.spec.binds_driver and not known[incus.TOOLKIT]:
            cure = "install nvidia-container-toolkit there, or declare driver: image"
            raise DFlashError("the host has no nvidia-container-cli", where=str(self.hop), cure=cure)
        config, devices = self._config(answer.instance), self._devices(known)
        if answer.instance is None:
            pool = ("-s", self.spec.storage) if self.spec.storage else ()
            network = ("-n", self.spec.network) if self.spec.network else ()
            words = [word for key, value in config.items() for word in ("-c", f"{key}={value}")]
            argv = (self._client, "init", self.spec.image, self._target, *pool, *network, *words)
            yield Change(f"container {self.hop}", "", _lines({"image": self.spec.image, **config}), (Action(argv),))
            has = Instance("Stopped", config, {}, config, {})
        else:
            has = answer.instance
            yield Kept(f"container {self.hop}", "it is there")
        status = has.status
        for step, stopped in self._configure(has, config):
            yield step
            status = "Stopped" if stopped else status
        yield from self._attach(has, devices)
        if status == "Running":
            yield Kept(f"state of {self.hop}", "it runs")
        else:
            action = Action((self._client, "start", self._target))  # of one that is frozen, too
            yield Change(f"state of {self.hop}", status.lower(), "running", (action,))

    @property
    def _client(self) -> str:
        return incus.client(self.hop)

    @property
    def _target(self) -> str:
        return incus.target(self.hop)

    def _config(self, has: Instance | None) -> dict[str, str]:
        spec = self.spec
        raw = [*binds.memory_lines(spec), *binds.raw_lines(spec)]
        lines = has.expanded_config.get("raw.lxc", "") if has else ""
        autostart = spec.autostart if spec.autostart is not None or has else True
        wanted = {
            "boot.autostart": "" if autostart is None else str(autostart).lower(),
            "limits.cpu": str(spec.cores or ""),
            "limits.memory": f"{spec.memory_gib}GiB" if spec.memory_gib else "",
            "nvidia.driver.capabilities": "compute,utility" if spec.binds_driver else "",
            "nvidia.runtime": "true" if spec.binds_driver else "",
            "raw.lxc": lxc.joined(lines, raw) if raw else "",
            "security.nesting": "true" if spec.nesting else "",
            "security.privileged": "true" if spec.privileged else "",
        }
        return {key: value for key, value in wanted.items() if value}

    def _devices(self, known: Facts) -> dict[str, dict[str, str]]:
        spec, where = self.spec, str(self.hop)
        wanted: dict[str, dict[str, str]] = {}
        chosen = wanted_gpus(spec, known[nodes.GPUS], where)
        wanted_nodes(spec, known[nodes.nodes(spec.devices)], known[nodes.GPUS], where)
        if spec.gpus == "all":
            wanted["gpu"] = {"type": "gpu", "gputype": "physical"}
        else:
            # By PCI address: the `id` of these devices is the DRM card's, not nvidia-smi's.
            for number, gpu in zip(spec.gpus, chosen, strict=True):
                wanted[f"gpu{number}"] = {"type": "gpu", "gputype": "physical", "pci": _pci(gpu.bus)}
        for path in spec.devices:
            wanted[_name("node", path)] = {"type": "unix-char", "source": path, "path": path}
        for mount in spec.all_mounts:
            only = {"readonly": "true"} if mount.read_only else {}
            wanted[_name("mount", mount.inside)] = {"type": "disk", "source": mount.host, "path": mount.inside, **only}
        return wanted

    def _configure(self, has: Instance, config: Mapping[str, str]) -> Iterator[tuple[Change | Kept, bool]]:
        """Each step, and whether it stops the instance."""
        subject = f"configuration of {self.hop}"
        gone = [] if self.spec.privileged else ["security.privileged"]
        gone += ["security.nesting"] if self.spec.nesting is False else []
        unset = [key for key in gone if has.expanded_config.get(key) == "true"]
        now = {key: has.expanded_config.get(key, "") for key in [*config, *unset]}
        target = {**config, **dict.fromkeys(unset, "false")}
        differing = sorted(key for key in target if now[key].strip() != target[key].strip())
        if not differing:
            yield Kept(subject, f"all {len(target)} declared keys are so" if target else "no key is declared"), False
            return
        stops = has.status != "Stopped" and not all(key.startswith(_LIVE) for key in differing)
        stop = (Action(("sh", "-c", STOP, "sh", self._client, self._target)),) if stops else ()
        words = tuple(f"{key}={target[key]}" for key in differing)
        note = "\nthe instance is stopped: what runs in it ends" if stops else ""
        before, after = ({key: each[key] for key in differing} for each in (now, target))
        actions = (*stop, Action((self._client, "config", "set", self._target, *words)))
        yield Change(subject, _lines(before), _lines(after) + note, actions), stops

    def _attach(self, has: Instance, devices: Devices) -> Iterator[Change | Kept]:
        for name, wanted in devices.items():
            subject = f"device {name} of {self.hop}"
            found = next((known for known, each in has.expanded_devices.items() if _same(each, wanted)), None)
            if found is not None:
                yield Kept(subject, f"it is there, as {found}")
                continue
            properties = tuple(f"{key}={value}" for key, value in wanted.items() if key != "type")
            old = has.expanded_devices.get(name)
            device = (self._client, "config", "device")
            away = (Action((*device, "remove", self._target, name)),) if name in has.devices else ()
            add = Action((*device, "add", self._target, name, wanted["type"], *properties))
            yield Change(subject, _lines(old or {}), _lines(wanted), (*away, add))
        for name, each in has.devices.items():
            declared = name in devices or any(_same(each, wanted) for wanted in devices.values())
            if self.spec.gpus and each.get("type") == "gpu" and not declared:
                remove = Action((self._client, "config", "device", "remove", self._target, name))
                yield Change(f"device {name} of {self.hop}", _lines(each), "", (remove,))


def _same(has: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether a device is what is wanted; what the manager adds by default says nothing against it."""
    defaults = {"gputype": "physical"}
    narrower = [key for key in ("id", "pci", "readonly") if key not in wanted and has.get(key, "false") != "false"]
    return not narrower and all(has.get(key, defaults.get(key)) == value for key, value in wanted.items())


def _pci(bus: str) -> str:
    """`0000:1b:00.0` of the kernel module; nvidia-smi writes the domain with eight digits."""
    domain, _, rest = bus.partition(":")
    return f"{domain[-4:]}:{rest}"


def _name(kind: str, path: str) -> str:
    return f"{kind}{path.rstrip('/').replace('/', '-')}"


def _lines(values: Mapping[str, str]) -> str:
    return "\n".join(f"{key}: {value}" for key, value in sorted(values.items()))
