"""Whether the lines of an LXC or Proxmox container let the host's NVIDIA nodes through, as they are numbered now."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash.finding import Severity
from dflash.provision.checks.wanted import Wanted
from dflash.provision.facts.lxc import Bind, Entry
from dflash.provision.facts.nodes import Node, is_nvidia

CAUSES = {
    "no-device": "nobody gave it to the container",
    "device-gone": "the driver makes its nodes when it is first used, which has not been since the machine started",
    "optional-bind": "an optional mount of what is not there is left out, and the container starts without a word",
    "stale-majors": "the numbers of all nodes but 195 are given anew with a kernel or driver update",
    "node-mode": "root of an unprivileged container is nobody special on the host, so the node's last digit counts",
    "autostart-race": "containers can start before anything has made the nodes",
}
_GPU = re.compile(r"/dev/nvidia\d+")
_NEEDED = re.compile(r"/dev/nvidia(\d+|ctl|-uvm)")
"""What CUDA opens; modeset, uvm-tools and MIG's capabilities may be absent, and are left alone."""
_MAKE = "nvidia-modprobe -c0 -u, from a unit that systemd runs before containers start"


@dataclass(frozen=True)
class Given:
    """What a container is given: `devices` by its manager, which looks up their numbers at each start; `binds` and
    `allowed` by written lines. `groups`: ranges (first, count) of the host's group ids that are its own groups.
    `elsewhere`: a hook or another file may give it more."""

    subject: str
    devices: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()
    allowed: tuple[tuple[int | None, int | None], ...] = ()
    unprivileged: bool = False
    groups: tuple[tuple[int, int], ...] = ()
    autostart: bool = False
    elsewhere: bool = False

    @property
    def nvidia(self) -> tuple[Bind, ...]:
        """The mounts of NVIDIA's nodes."""
        return tuple(each for each in self.binds if is_nvidia(each.target))

    @property
    def needed(self) -> tuple[Bind, ...]:
        """Those of nodes that CUDA opens."""
        return tuple(each for each in self.nvidia if _NEEDED.fullmatch(each.source))

    @property
    def gpus(self) -> set[str]:
        """The nodes of GPUs, given either way."""
        return {path for path in (*self.devices, *(each.source for each in self.nvidia)) if _GPU.fullmatch(path)}


@dataclass(frozen=True)
class Fault:
    """A finding before its cause is looked up."""

    name: str
    subject: str
    found: str
    cure: str
    severity: Severity = "block"


def groups(idmap: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """The host's group ids in `lxc.idmap` values such as `g 0 100000 65536`."""
    matches = (re.fullmatch(r"[gb]\s+\d+\s+(\d+)\s+(\d+)", value) for value in idmap)
    return tuple((int(match[1]), int(match[2])) for match in matches if match)


def elsewhere(entries: Iterable[Entry]) -> bool:
    """Whether a mount hook, such as LXC's for NVIDIA's toolkit, or a file that is not LXC's own may give devices."""
    return any(
        key.startswith("lxc.hook.") or (key == "lxc.include" and not value.startswith("/usr/share/lxc/config/"))
        for key, value in entries
    )


def judge(given: Given, nodes: dict[str, Node], want: Wanted) -> list[Fault]:
    """Faults, in the order in which they would be met."""
    found = [*_absent(given, want), *_gone(given, nodes), *_numbers(given, nodes), *_modes(given, nodes)]
    optional = [each.source for each in given.needed if each.optional and each.source in nodes]
    if given.autostart and optional:
        what = f"it starts with the machine, and {_some(optional)} may not be there yet: the mount is optional"
        found.append(Fault("autostart-race", given.subject, what, f"{_MAKE}; without `optional`", "warn"))
    return found


def _absent(given: Given, want: Wanted) -> list[Fault]:
    if not want.gpus or given.elsewhere:
        return []
    paths = {*given.devices, *(each.source for each in given.nvidia)}
    if any(each.target in ("dev", "dev/") for each in given.binds):
        return []
    lacking = [path for path in ("/dev/nvidiactl", "/dev/nvidia-uvm") if path not in paths]
    cure = "declare `gpus` and ./inv provision, or give them by hand (Proxmox: pct set ID --devN PATH)"
    found = []
    if len(given.gpus) < want.gpus:
        what = f"it is given {len(given.gpus)} GPUs, of {want.gpus} wanted"
        found.append(Fault("no-device", given.subject, what, cure))
    if lacking and given.gpus:
        found.append(Fault("no-device", given.subject, f"it is not given {_some(lacking)}", cure))
    return found


def _gone(given: Given, nodes: dict[str, Node]) -> list[Fault]:
    found = []
    folders = {path.rpartition("/")[0] for path in nodes}
    required = [each.source for each in given.nvidia if not each.optional and each.source not in folders]
    lacking = [path for path in (*given.devices, *required) if is_nvidia(path) and path not in nodes]
    if lacking:
        what = f"the host has no {_some(lacking)}: the container can not start"
        found.append(Fault("device-gone", given.subject, what, f"as root there: {_MAKE}"))
    silent = [each.source for each in given.needed if each.optional and each.source not in nodes]
    if silent:
        what = f"the host has no {_some(silent)}, and the container starts without"
        cure = f"as root there: {_MAKE}; then start the container anew"
        found.append(Fault("optional-bind", given.subject, what, cure))
    return found


def _numbers(given: Given, nodes: dict[str, Node]) -> list[Fault]:
    there = [nodes[each.source] for each in given.needed if each.source in nodes]
    shut = [
        node for node in there if not {(None, None), (node.major, None), (node.major, node.minor)} & {*given.allowed}
    ]
    if not shut:
        return []
    majors = sorted({major for major, _ in given.allowed if major is not None and major >= 195})
    written = f"majors {', '.join(map(str, majors))} are allowed" if majors else "no such major is allowed"
    now = ", ".join(f"{node.path} has {node.major}" for node in shut[:3])
    cure = "./inv provision writes those of now (Proxmox: give the nodes by --devN, which needs none)"
    return [Fault("stale-majors", given.subject, f"{written}, and {now}", cure)]


def _modes(given: Given, nodes: dict[str, Node]) -> list[Fault]:
    if not given.unprivileged:
        return []
    there = [nodes[each.source] for each in given.needed if each.source in nodes]
    shut = [node for node in there if node.mode & 0o006 != 0o006 and not _by_group(given, node)]
    if not shut:
        return []
    node = shut[0]
    what = f"{node.path} is {node.mode:04o} of {node.uid}:{node.gid}, and the container is unprivileged"
    cure = "chmod 0666 (NVreg_DeviceFileMode=0666 for the module), or map the group into the container"
    return [Fault("node-mode", given.subject, what, cure)]


def _by_group(given: Given, node: Node) -> bool:
    mapped = any(first <= node.gid < first + count for first, count in given.groups)
    return mapped and node.mode & 0o060 == 0o060


def _some(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(paths[:3]) + more
