"""What a container is to be, as declared: the same words for Proxmox, LXC, Incus, LXD and Docker.

container:
  image: local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst
  cores: 64
  memory_gib: 512
  shm_gib: 64
  gpus: all
  mounts: [{host: /srv/models, inside: /models, read_only: true}]
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Literal

from dflash.errors import DFlashError
from dflash.provision.facts.nodes import Gpu, Node

_PATH = re.compile(r"/[^\s,:=\"'\\#]*")
_RULE = "must be an absolute path without blanks, commas, colons, '=', '#', quotes or backslashes"

INSTALLER = "/opt/nvidia-installer"
"""Where the folder of a declared installer is seen inside."""


@dataclass(frozen=True)
class Mount:
    """A folder (or file) of the host, and where it appears in the container."""

    host: str
    inside: str
    read_only: bool = False

    def __post_init__(self) -> None:
        for name in ("host", "inside"):
            _check(getattr(self, name))
            # As Docker tells of it, and so that one place has one name.
            object.__setattr__(self, name, normal(getattr(self, name)))
        if self.inside == "/":
            raise ValueError("a mount can not be at /, which is the container's own")


@dataclass(frozen=True)
class ContainerSpec:
    """A container as declared. A value left out is the manager's own default when the container is made, and from then
    on what it is. (`autostart` left out: a new container starts with its machine.)

    `image`: Proxmox: a template volume (`local:vztmpl/…`) or a tarball; LXC: a tarball of a root file system on the
    host, or `download:DISTRIBUTION:RELEASE:ARCHITECTURE`; Incus, LXD and Docker: an image by its reference.
    `gpus`: "all", or numbers as nvidia-smi counts them. `devices`: further nodes of the host.
    `driver`: where the user-space half of NVIDIA's driver comes from: "host" (the host's own files, seen in the
    container), "image" (the image has it), or the path on the host of NVIDIA's `.run` installer.
    `network`: a bridge (LXC), a net0 value (Proxmox), a network (Incus, LXD, Docker); left out: the host's own network
    (LXC, Docker), what the profile says (Incus, LXD), none (Proxmox). `storage`: a pool; with Proxmox `POOL:GIB`.
    `raw`: further `lxc.KEY = VALUE` lines. Raises ValueError for a value that none of them could take.
    """

    image: str
    cores: int | None = None
    memory_gib: int | None = None
    shm_gib: int | None = None
    privileged: bool = False
    nesting: bool | None = None
    gpus: Literal["all"] | tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    network: str = ""
    storage: str = ""
    autostart: bool | None = None
    driver: str = "host"
    raw: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for path in self.devices:
            _check(path)
        if self.driver not in ("host", "image"):
            _check(self.driver)
        for number in (self.cores, self.memory_gib, self.shm_gib):
            if number is not None and number < 1:
                raise ValueError(f"cores and sizes must be at least 1, not {number}")
        for line in self.raw:
            if not re.fullmatch(r"lxc\.\S+ =( [^\n]*)?", line):
                raise ValueError(f"a raw line is written `lxc.KEY = VALUE`, not {line!r}")
        inside = [mount.inside for mount in self.mounts]
        for path in inside:
            if inside.count(path) > 1:
                raise ValueError(f"two mounts are at {path}")
        # A word that begins with - would be an option of the program that makes the container.
        if not re.fullmatch(r"[A-Za-z0-9/][^\s]*", self.image):
            raise ValueError(f"an image begins with a letter, a digit or /, and has no blanks: {self.image!r}")
        for name in ("network", "storage"):
            value = getattr(self, name)
            if value and not re.fullmatch(r"[A-Za-z0-9][^\s]*", value):
                raise ValueError(f"{name} begins with a letter or a digit, and has no blanks: {value!r}")

    @property
    def binds_driver(self) -> bool:
        """Whether the host's driver files are to be seen in the container."""
        return bool(self.gpus) and self.driver == "host"

    @property
    def all_mounts(self) -> tuple[Mount, ...]:
        """The declared mounts, and the folder of a declared installer."""
        if self.driver in ("host", "image") or not self.gpus:
            return self.mounts
        return (*self.mounts, Mount(self.driver.rpartition("/")[0] or "/", INSTALLER, read_only=True))


def normal(path: str) -> str:
    """An absolute path without `//`, `.`, `..` and a slash at its end."""
    return "/" + posixpath.normpath(path).lstrip("/")


def _check(path: str) -> None:
    if not _PATH.fullmatch(path):
        raise ValueError(f"{_RULE}, not {path!r}")


def wanted_gpus(spec: ContainerSpec, gpus: tuple[Gpu, ...], where: str) -> tuple[Gpu, ...]:
    """The declared GPUs. Raises DFlashError for those that the host has not."""
    if not spec.gpus:
        return ()
    if not gpus:
        cure = "load the kernel module there (modprobe nvidia), or install the driver; `./inv check` says more"
        raise DFlashError("the host's kernel drives no NVIDIA GPU", where=where, cure=cure)
    if spec.gpus == "all":
        return gpus
    lacking = [number for number in spec.gpus if not 0 <= number < len(gpus)]
    if lacking:
        what = f"there is no GPU {lacking[0]}: the host has {len(gpus)}, counted from 0"
        raise DFlashError(what, where=where, cure="correct `gpus` of the container")
    return tuple(gpus[number] for number in spec.gpus)


def wanted_nodes(spec: ContainerSpec, nodes: dict[str, Node], gpus: tuple[Gpu, ...], where: str) -> tuple[Node, ...]:
    """The device nodes that the container is to have, NVIDIA's before further ones.

    A GPU is of use with its own node, nvidiactl and nvidia-uvm; what else the driver made (uvm-tools, modeset, the
    capabilities of MIG) comes along. Raises DFlashError for a node that is needed and not there.
    """
    chosen = wanted_gpus(spec, gpus, where)
    paths: list[str] = []
    if chosen:
        needed = [*(f"/dev/nvidia{gpu.minor}" for gpu in chosen), "/dev/nvidiactl", "/dev/nvidia-uvm"]
        for path in needed:
            if path not in nodes:
                cure = "make it there (nvidia-modprobe -c0 -u): it is made when the driver is first used"
                raise DFlashError(f"the host has no {path}", where=where, cure=cure)
        extra = re.compile(r"/dev/nvidia-(uvm-tools|modeset|caps/.+)")
        paths = [*needed, *sorted(path for path in nodes if extra.fullmatch(path))]
    for path in spec.devices:
        if path not in nodes:
            raise DFlashError(f"the host has no device {path}", where=where, cure="correct `devices` of the container")
        paths.append(path)
    return tuple(nodes[path] for path in dict.fromkeys(paths))
