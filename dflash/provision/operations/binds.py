"""The `lxc.` lines that LXC and Proxmox share: devices, mounts, shared memory, the host's driver files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dflash.errors import DFlashError
from dflash.provision.container import ContainerSpec
from dflash.provision.facts.driver import Driver
from dflash.provision.facts.lxc import BINDS, DEVICES, Bind, Entry
from dflash.provision.facts.nodes import Node


def bound(host: str, inside: str, *options: str) -> Entry:
    """A mount line. Without `optional`, a container that would lack it does not start, and says so."""
    return BINDS, str(Bind(host, inside.lstrip("/"), ("bind", *options)))


def device_lines(nodes: Iterable[Node]) -> list[Entry]:
    """Nodes that the container sees and may open, with the majors of now. A host has cgroups of version 1 or 2, and
    LXC passes over the lines of the other."""
    known = list(nodes)
    pairs = dict.fromkeys((node.major, node.minor) for node in known)
    allow = [(key, f"c {major}:{minor} rwm") for key in DEVICES for major, minor in pairs]
    return [*allow, *(bound(node.path, node.path, "create=file") for node in known)]


def mount_lines(spec: ContainerSpec) -> list[Entry]:
    """The declared mounts. What is mounted is a folder."""
    return [
        bound(each.host, each.inside, *(("ro",) if each.read_only else ()), "create=dir") for each in spec.all_mounts
    ]


def memory_lines(spec: ContainerSpec) -> list[Entry]:
    """/dev/shm of the declared size, which NCCL and data loaders share memory in."""
    if spec.shm_gib is None:
        return []
    options = ("rw", "nosuid", "nodev", f"size={spec.shm_gib}g", "create=dir")
    return [(BINDS, str(Bind("tmpfs", "dev/shm", options, "tmpfs")))]


def driver_lines(spec: ContainerSpec, driver: Driver, where: str) -> list[Entry]:
    """The host's driver files, read-only, at the same paths (why so: operations/driver.py). Raises DFlashError when
    the host has none."""
    if not spec.binds_driver:
        return []
    if "libcuda.so.1" not in driver.libraries:
        cure = "install the driver's libraries there (libcuda1, libnvidia-compute-…), or declare driver: image"
        raise DFlashError("the host has no libcuda.so.1", where=where, cure=cure)
    # A name with a version is gone after the host's next update, which must not keep the container from starting.
    versioned = re.compile(r"\.so\.\d+\.")
    return [
        bound(path, path, "ro", *(("optional",) if versioned.search(path) else ()), "create=file")
        for path in driver.files
    ]


def raw_lines(spec: ContainerSpec) -> list[Entry]:
    """The declared lines."""
    return [(key, value.strip()) for key, _, value in (line.partition(" =") for line in spec.raw)]


def shown(entries: Iterable[Entry]) -> str:
    """Entries as lines, for a preview."""
    return "\n".join(f"{key} = {value}".rstrip() for key, value in entries)
