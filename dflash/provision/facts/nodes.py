"""The device nodes of a machine, the majors that its kernel gives them, and which node is which GPU's."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from dflash.provision.fact import Fact, Output

_STAT = """for each in /dev/nvidia* /dev/nvidia-caps/* /dev/dri/* "$@"; do
    if [ -c "$each" ]; then stat -L -c '%n %f %t %T %u %g' "$each"; fi
done"""
"""Paths that are words of the command follow the ones that are always looked for."""

_GPUS = "cat /proc/driver/nvidia/gpus/*/information"


@dataclass(frozen=True)
class Node:
    """A character device: `mode` has the permission bits alone."""

    path: str
    major: int
    minor: int
    mode: int
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True)
class Gpu:
    """A GPU that the kernel module drives: its PCI address, and the N of its /dev/nvidiaN."""

    bus: str
    minor: int


def nodes(more: Sequence[str] = ()) -> Fact[dict[str, Node]]:
    """The NVIDIA and DRM nodes, and those of `more` that are there, by path."""
    name = "device nodes" + "".join(f" {each}" for each in more)
    return Fact(name, ("sh", "-c", _STAT, "sh", *more), parse_nodes)


def parse_nodes(output: Output) -> dict[str, Node]:
    """Lines of `stat`: path, mode, major and minor (these three hexadecimal), uid, gid."""
    found = {}
    for line in output.stdout.splitlines():
        if match := re.fullmatch(r"(/\S+) ([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+) (\d+) (\d+)", line):
            mode, major, minor = (int(each, 16) for each in match.group(2, 3, 4))
            node = Node(match[1], major, minor, stat.S_IMODE(mode), int(match[5]), int(match[6]))
            found[node.path] = node
    return found


def parse_majors(output: Output) -> dict[str, int]:
    """The character devices of /proc/devices, by name; of names given twice, the first."""
    characters = output.stdout.partition("Block devices:")[0]
    found: dict[str, int] = {}
    for number, name in re.findall(r"^ *(\d+) (\S+)$", characters, re.MULTILINE):
        found.setdefault(name, int(number))
    return found


def parse_gpus(output: Output) -> tuple[Gpu, ...]:
    """By PCI address, as nvidia-smi counts them: the first is GPU 0."""
    buses = re.findall(r"^Bus Location:\s*(\S+)", output.stdout, re.MULTILINE)
    minors = re.findall(r"^Device Minor:\s*(\d+)", output.stdout, re.MULTILINE)
    pairs = zip(buses, minors, strict=False)
    return tuple(sorted((Gpu(bus.lower(), int(minor)) for bus, minor in pairs), key=lambda gpu: gpu.bus))


NODES = nodes()
MAJORS = Fact("majors of character devices", ("cat", "/proc/devices"), parse_majors)
GPUS = Fact("GPUs of the kernel module", ("sh", "-c", _GPUS), parse_gpus)


def is_nvidia(path: str) -> bool:
    """Whether a path, of the host or without its slash inside a container, is a node of NVIDIA's driver."""
    return path.lstrip("/").startswith("dev/nvidia")
