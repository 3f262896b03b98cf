"""A Docker container that stays: created, kept in the form declared, and running."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import DFlashError
from dflash.hosts.chain import Docker
from dflash.provision.container import ContainerSpec, wanted_nodes
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts import docker, nodes
from dflash.provision.facts.docker import Inspected
from dflash.provision.operation import Action, Change, Kept

_GIB = 2**30
_UPDATED = ("cores", "memory", "restart")
"""What `docker update` changes in a container that runs; for the rest it is made anew."""


@dataclass(frozen=True)
class Container:
    """The container of a `docker:` hop.

    What Docker can not change in place needs a new container. The old one is stopped, renamed to NAME-ID and kept:
    what was written into it, outside of mounts, is there until a person removes it.
    """

    hop: Docker
    spec: ContainerSpec

    def facts(self) -> Sequence[Fact[Any]]:
        """The container, its image, and what of the host goes into it."""
        container = (docker.container(self.hop.name), docker.image(self.spec.image))
        return (*container, docker.TOOLKIT, nodes.nodes(self.spec.devices), nodes.GPUS)

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        """The image, the container, its limits, its state. Raises DFlashError when the daemon does not answer, for
        `raw` lines, and when the host lacks a device or NVIDIA's toolkit."""
        answer = known[docker.container(self.hop.name)]
        if answer.error:
            cure = "start Docker there, and see that this user may use it"
            raise DFlashError(answer.error, where=str(self.hop), cure=cure)
        self._refuse(known)
        has = answer.container
        wanted = self._wanted(has)
        if known[docker.image(self.spec.image)]:
            yield Kept(f"image {self.spec.image}", "it is there")
        else:
            yield Change(f"image {self.spec.image}", "", "there", (Action(("docker", "pull", self.spec.image)),))
        if has is None:
            yield Change(f"container {self.hop}", "", _lines(wanted), (self._run(wanted["restart"]),))
            return
        before = {key: getattr(has, key) for key in wanted}
        count = len(known[nodes.GPUS])
        differing = [key for key in wanted if _meant(key, before[key], count) != _meant(key, wanted[key], count)]
        if any(key not in _UPDATED for key in differing):
            restart = wanted.get("restart", has.restart)
            old, new = ({key: each[key] for key in differing} for each in (before, wanted))
            yield self._anew(has, old, new, self._run(restart))
            return
        yield Kept(f"container {self.hop}", "it is as declared")
        if differing:
            update = Action(("docker", "update", *self._limits(differing, wanted.get("restart", "")), self.hop.name))
            old, new = ({key: each[key] for key in differing} for each in (before, wanted))
            yield Change(f"limits of {self.hop}", _lines(old), _lines(new), (update,))
        else:
            yield Kept(f"limits of {self.hop}", "they are as declared")
        if has.state == "running":
            yield Kept(f"state of {self.hop}", "it runs")
        else:
            verb = "unpause" if has.state == "paused" else "start"
            yield Change(f"state of {self.hop}", has.state, "running", (Action(("docker", verb, self.hop.name)),))

    def _refuse(self, known: Facts) -> None:
        where = str(self.hop)
        wanted_nodes(self.spec, known[nodes.nodes(self.spec.devices)], known[nodes.GPUS], where)
        if self.spec.raw:
            raise DFlashError("`raw` lines are LXC's, and Docker has none", where=where, cure="leave them out")
        if self.spec.driver not in ("host", "image"):
            cure = "declare driver: host, which NVIDIA's toolkit sees to"
            raise DFlashError("an installer can not be used in a Docker container", where=where, cure=cure)
        if self.spec.gpus and not known[docker.TOOLKIT]:
            cure = "install nvidia-container-toolkit there, then `nvidia-ctk runtime configure` and restart Docker"
            raise DFlashError("`--gpus` needs NVIDIA's container toolkit", where=where, cure=cure)

    def _wanted(self, has: Inspected | None) -> dict[str, Any]:
        """What is declared, as `docker inspect` would show it; what is left out is not compared."""
        spec = self.spec
        restart = "no" if spec.autostart is False else "unless-stopped"
        wanted: dict[str, Any] = {"image": spec.image, "privileged": spec.privileged}
        declared: dict[str, Any] = {
            "restart": restart if spec.autostart is not None or has is None else "",
            "cores": float(spec.cores or 0),
            "memory": (spec.memory_gib or 0) * _GIB,
            "shm": (spec.shm_gib or 0) * _GIB,
            "network": spec.network,
            "gpus": spec.gpus if isinstance(spec.gpus, str) else ",".join(map(str, spec.gpus)),
            "devices": spec.devices,
            "mounts": {mount.inside: (mount.host, mount.read_only) for mount in spec.mounts},
        }
        return {**wanted, **{key: value for key, value in declared.items() if value}}

    def _limits(self, keys: Sequence[str], restart: str) -> list[str]:
        """Swap is what memory is, no more: a training that swaps is a training that stands."""
        words: list[str] = []
        if "cores" in keys and self.spec.cores:
            words += ["--cpus", str(self.spec.cores)]
        if "memory" in keys and self.spec.memory_gib:
            memory = str(self.spec.memory_gib * _GIB)
            words += ["--memory", memory, "--memory-swap", memory]
        return [*words, *(["--restart", restart] if "restart" in keys else [])]

    def _run(self, restart: str) -> Action:
        spec = self.spec
        words = ["docker", "run", "--detach", "--init", "--name", self.hop.name]
        words += ["--network", spec.network or "host", *self._limits(_UPDATED, restart)]
        words += ["--shm-size", str(spec.shm_gib * _GIB)] if spec.shm_gib else []
        words += ["--privileged"] if spec.privileged else []
        if spec.gpus:
            # Docker reads the word as a line of CSV, whose quotes keep the commas together.
            words += ["--gpus", "all" if spec.gpus == "all" else f'"device={",".join(map(str, spec.gpus))}"']
        for path in spec.devices:
            words += ["--device", path]
        for mount in spec.mounts:
            only = ",readonly" if mount.read_only else ""
            words += ["--mount", f"type=bind,source={mount.host},target={mount.inside}{only}"]
        if "@sha256:" in spec.image:
            words += ["--env", f"DFLASH_IMAGE={spec.image}"]  # which the container could not know by itself
        return Action((*words, "--entrypoint", "sleep", spec.image, "infinity"))

    def _anew(self, has: Inspected, before: dict[str, Any], after: dict[str, Any], run: Action) -> Change:
        aside = f"{self.hop.name}-{has.id[:12]}"
        works = has.state in ("running", "paused")
        ends = "what runs in it ends; " if works else ""
        note = (
            f"made anew: {ends}what was written into it, outside of mounts, stays in {aside}, which `docker rm` removes"
        )
        undeclared = sorted({*has.mounts, *has.volumes} - {mount.inside for mount in self.spec.mounts})
        if undeclared:
            note += f"\nwithout {', '.join(undeclared)}, which is mounted and not declared"
        actions = [Action(("docker", "stop", self.hop.name))] if works else []
        # The old one must not come back by itself beside the new.
        actions += [
            Action(("docker", "update", "--restart", "no", self.hop.name)),
            Action(("docker", "rename", self.hop.name, aside)),
            run,
        ]
        return Change(f"container {self.hop}", _lines(before), f"{_lines(after)}\n{note}", tuple(actions))


def _meant(key: str, value: Any, count: int) -> Any:
    """A value without what makes no difference: an order, or the numbers of all GPUs in place of their word."""
    if key == "gpus":
        return set(map(str, range(count))) if value == "all" and count else set(value.split(","))
    return set(value) if key == "devices" else value


def _lines(values: dict[str, Any]) -> str:
    return "\n".join(f"{key}: {_word(key, value)}" for key, value in sorted(values.items()))


def _word(key: str, value: Any) -> str:
    if key in ("memory", "shm"):
        return f"{value / _GIB:g} GiB" if value else "no limit"
    if key == "mounts":
        pairs = (f"{host} at {inside}{' read-only' if ro else ''}" for inside, (host, ro) in sorted(value.items()))
        return ", ".join(pairs) or "none"
    if key == "devices":
        return ", ".join(value) or "none"
    if key == "cores":
        return f"{value:g}" if value else "no limit"
    return str(value).lower() if isinstance(value, bool) else value or "none"
