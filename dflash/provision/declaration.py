"""What a host of hosts.yaml must have, its `machine:` section; hosts.example.yaml shows one.

gpu1:
  chain: ssh:root@gpu1/pct:200
  machine:                      # the end of the chain, where work runs
    python: ">=3.11,<3.13"
    packages: [g++, git]
    persistence: true           # of the machine that has the driver, always
    host: {packages: [lxc]}     # the machine before the container
    container: {...}            # dflash/provision/container.py
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Annotated, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from dflash.document import load
from dflash.hosts.chain import looks_like_chain
from dflash.provision.container import ContainerSpec
from dflash.validation import validated

LIMITS = (
    *("as", "core", "cpu", "data", "fsize", "locks", "maxlogins", "memlock", "msgqueue"),
    *("nice", "nofile", "nproc", "priority", "rss", "rtprio", "sigpending", "stack"),
)
"""What pam_limits knows."""


def _package(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9+._-]*(:[a-z0-9]+)?(=[A-Za-z0-9.+:~-]+)?", text):
        raise ValueError(f"{text!r} is not a package; write NAME or NAME=VERSION")
    # apt-get takes a last - or + for what is to be done with the package, were it that of a version.
    if text.endswith("-") or (text.endswith("+") and ("=" in text or not text.endswith("++"))):
        raise ValueError(f"{text!r} is not a package: apt would read the last {text[-1]!r} as an order")
    return text


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", text):
        raise ValueError(f"{text!r} can not name a user or group: small letters, digits, '_' and '-'")
    return text


def _path(text: str) -> str:
    if not re.fullmatch(r"/[^\n\0]*", text) or "//" in text or {".", ".."} & set(text.split("/")) or text[1:2] == "":
        raise ValueError(f"must be an absolute path without '..', not {text!r}")
    return text.rstrip("/")


def _quoted(value: Any) -> Any:
    if isinstance(value, float):
        raise ValueError(f"{value} is a number, in which 3.10 is 3.1; write it in quotes, as '3.11'")
    return value


def _python(text: str) -> str:
    """A plain `3.12` is any 3.12."""
    wanted = f"=={text}.*" if re.fullmatch(r"[0-9]+\.[0-9]+", text) else text
    with contextlib.suppress(InvalidSpecifier):
        if SpecifierSet(wanted):
            return wanted
    raise ValueError(f"{text!r} is not a Python; write '3.12', or a range such as '>=3.11,<3.13'")


def _limits(values: dict[str, Any]) -> dict[str, Any]:
    for name, value in values.items():
        if name not in LIMITS:
            raise ValueError(f"there is no limit {name!r}; known are {', '.join(LIMITS)}")
        if value != "unlimited" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ValueError(f"{name} is a number or unlimited, not {value!r}")
    return values


def _source(text: str) -> str:
    if not re.fullmatch(r"\S[^\n\0]*", text) or text.startswith("-"):
        raise ValueError(f"{text!r} can not be mounted; write a path, or server:/export")
    if re.match("[A-Z]+=", text):
        raise ValueError(f"{text!r} is fstab's way; write the disk's path, such as /dev/disk/by-uuid/… or by-label/…")
    return _path(text) if text.startswith("/") else text


def _word(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][^\s\0]*|", text):
        raise ValueError(f"{text!r} is not one word")
    return text


Path_ = Annotated[str, AfterValidator(_path)]
Name = Annotated[str, AfterValidator(_name)]
Word = Annotated[str, AfterValidator(_word)]


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MountSpec(_Declared):
    """What is mounted at a place: a folder (bound), a block device, or what its `type` knows."""

    source: Annotated[str, AfterValidator(_source)]
    type: Word = ""
    options: Word = ""
    fstab: bool = False


class PartSpec(_Declared):
    """What one machine must have. `directories` belong to `user`, or else to whom one logs in as."""

    packages: list[Annotated[str, AfterValidator(_package)]] = []
    user: Name = ""
    groups: list[Name] = []
    limits: Annotated[dict[str, Any], AfterValidator(_limits)] = {}
    mounts: dict[Path_, MountSpec] = {}
    directories: list[Path_] = []


class MachineSpec(PartSpec):
    """What the end of a chain must have, what its GPUs, and, where a container is on the way, what the `host` before
    it and the `container` itself."""

    python: Annotated[str, BeforeValidator(_quoted), AfterValidator(_python)] = ">=3.11,<3.13"
    persistence: bool = False
    host: PartSpec = PartSpec()
    container: ContainerSpec | None = None


def declared(name: str, file: str | Path) -> MachineSpec:
    """The `machine:` section of the host `name` in the inventory `file`. A chain, and a host without the section, must
    have what every environment needs.

    Raises:
        ConfigError: the section is wrong; with line and column.
        StorageError: the file can not be read.
    """
    if looks_like_chain(name):
        return MachineSpec()
    document = load(file)
    if "machine" not in document.data[name]:
        return MachineSpec()
    spec: MachineSpec = validated(MachineSpec, document, (name, "machine"))
    for part, place in ((spec, ()), (spec.host, ("host",))):
        if part.groups and not part.user:
            where = (name, "machine", *place, "groups")
            raise document.error("groups are a user's", where, key=True, cure="name the user")
    return spec
