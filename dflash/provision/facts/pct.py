"""A Proxmox container: its state, its node, and its configuration as Proxmox itself reads it.

Proxmox writes the file anew at each change, with its keys sorted, comments first and `lxc.` lines last, so two files
are compared by what they say. What follows a line `[name]` belongs to a snapshot, or to changes that wait for the
next start (`[pve:pending]`), and counts for nothing in the container that runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash.provision.fact import Fact, Output
from dflash.provision.facts import lxc

_PENDING = "pve:pending"
_POSITIONAL = {"dev": "path", "mp": "volume"}
"""The property whose name may be left out, by the kind of key."""


@dataclass(frozen=True)
class Conf:
    """`keys` without the `lxc.` lines, which are in `raw`; the same of each section below, by its name."""

    keys: Mapping[str, str] = field(default_factory=dict)
    raw: tuple[lxc.Entry, ...] = ()
    sections: Mapping[str, Conf] = field(default_factory=dict)
    text: str = ""

    @property
    def pending(self) -> bool:
        """Whether changes wait for the next start."""
        waiting = self.sections.get(_PENDING)
        return waiting is not None and bool(waiting.keys)

    def numbered(self, kind: str) -> dict[str, dict[str, str]]:
        """The properties of dev0, dev1, … or mp0, mp1, …"""
        found = {key: value for key, value in self.keys.items() if re.fullmatch(rf"{kind}\d+", key)}
        return {key: properties(value, _POSITIONAL[kind]) for key, value in found.items()}


def properties(value: str, positional: str = "volume") -> dict[str, str]:
    """`/dev/nvidia0,gid=44` as a map; a word without `=` is the value of `positional`."""
    pairs = (word.partition("=") for word in value.split(",") if word)
    return {key: text for key, text in ((name, rest) if equals else (positional, name) for name, equals, rest in pairs)}


def written(values: Mapping[str, str], positional: str = "volume") -> str:
    """The inverse of `properties`."""
    first = [values[positional]] if positional in values else []
    return ",".join([*first, *(f"{key}={value}" for key, value in values.items() if key != positional)])


def conf(number: int) -> Fact[Conf | None]:
    """The configuration of a container of this node; None when the node has none by that number."""
    argv = ("cat", f"/etc/pve/lxc/{number}.conf")
    return Fact(f"configuration of pct:{number}", argv, lambda output: parse_conf(output.stdout) if output.ok else None)


def parse_conf(text: str) -> Conf:
    """Lines `key: value`, comments, and sections in brackets."""
    parts = re.split(r"^\[([^\]\n]+)\]\s*$", text, flags=re.MULTILINE)
    sections = {name: _part(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}
    top = _part(parts[0])
    return Conf(top.keys, top.raw, sections, text)


def _part(text: str) -> Conf:
    pairs = re.findall(r"^([a-z][a-z0-9_-]*):[ \t]*(.*?)[ \t]*$", text, re.MULTILINE)
    return Conf(dict(pairs), lxc.entries(text), text=text)


def status(number: int) -> Fact[str | None]:
    """running or stopped; None for a container that this node has not."""
    return Fact(f"state of pct:{number}", ("pct", "status", str(number)), parse_status)


def parse_status(output: Output) -> str | None:
    """`status: running`."""
    match = re.search(r"^status:\s*(\S+)", output.stdout, re.MULTILINE)
    return match[1] if output.ok and match else None


def parse_node(output: Output) -> str | None:
    """The link /etc/pve/local leads to nodes/NAME; None on a machine that is no node."""
    return output.stdout.strip().rpartition("/")[2] or None if output.ok else None


def parse_places(output: Output) -> dict[int, tuple[str, str]]:
    """The node and the kind (lxc or qemu) of every guest of the cluster, by number."""
    try:
        found = json.loads(output.stdout)["ids"]
        return {int(number): (each["node"], each["type"]) for number, each in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


NODE = Fact("this Proxmox node", ("readlink", "/etc/pve/local"), parse_node)
PLACES = Fact("nodes of Proxmox guests", ("cat", "/etc/pve/.vmlist"), parse_places)
