"""An LXC container: its state and its configuration file, read as keys and kept as lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dflash.provision.fact import Fact, Output

Entry = tuple[str, str]
"""A key and its value. A key may come several times, and an empty value clears what came before."""

_CONFIG = 'place=$(lxc-config lxc.lxcpath) && cat "$place/$1/config"'
_ROOTFS = 'place=$(lxc-config lxc.lxcpath) && test -d "$place/$1/rootfs"'
_LINE = re.compile(r"\s*(lxc\.[^\s=:]+)\s*[=:]\s*(.*?)\s*")
"""LXC writes `key = value`, Proxmox `key: value`."""

BINDS, DEVICES = "lxc.mount.entry", ("lxc.cgroup2.devices.allow", "lxc.cgroup.devices.allow")

_LISTS = re.compile(
    r"lxc\.(mount\.(entry|auto)|cgroup2?\.devices\..*|environment(\..*)?|cap\..*|hook\..*|group|idmap|include)"
)


@dataclass(frozen=True)
class Bind:
    """A mount of the host's `source` at `target` (without its first slash) in the container."""

    source: str
    target: str
    options: tuple[str, ...] = ("bind",)
    kind: str = "none"

    @property
    def optional(self) -> bool:
        """Whether the container starts without a word when the source is not there."""
        return "optional" in self.options

    def __str__(self) -> str:
        return f"{self.source} {self.target} {self.kind} {','.join(self.options)} 0 0"


def place(output: Output) -> str | None:
    """Where containers are kept; None without LXC."""
    return output.stdout.strip() or None if output.ok else None


PLACE = Fact("place of LXC containers", ("lxc-config", "lxc.lxcpath"), place)


def state(name: str) -> Fact[str | None]:
    """RUNNING, STOPPED, …; None for a container that does not exist."""
    return Fact(f"state of lxc:{name}", ("lxc-info", "-n", name, "-s", "-H"), parse_state)


def parse_state(output: Output) -> str | None:
    """One word, alone or after `State:`."""
    words = output.stdout.split()
    return words[-1] if output.ok and words else None


def config(name: str) -> Fact[str | None]:
    """The text of the configuration file; None when there is none."""
    argv = ("sh", "-c", _CONFIG, "sh", name)
    return Fact(f"configuration of lxc:{name}", argv, lambda output: output.stdout if output.ok else None)


def unread(output: Output) -> str:
    """Why the output of `config` does not say what is in the file, or that there is none; empty where it does."""
    if output.ok or "No such file" in output.stderr:
        return ""
    return (output.stderr.strip().splitlines() or ["no answer"])[-1]


def rootfs(name: str) -> Fact[bool]:
    """Whether the container's root file system is there, with or without a configuration."""
    return Fact(f"root file system of lxc:{name}", ("sh", "-c", _ROOTFS, "sh", name), lambda output: output.ok)


def entries(text: str) -> tuple[Entry, ...]:
    """The `lxc.` keys of a file, in order; comments and other lines are left out."""
    matches = (_LINE.fullmatch(line) for line in text.splitlines())
    return tuple((match[1], match[2]) for match in matches if match)


def values(found: Iterable[Entry], key: str) -> tuple[str, ...]:
    """What `key` comes to: an empty value clears those before it."""
    kept: list[str] = []
    for name, value in found:
        if name == key:
            kept = [*kept, value] if value else []
    return tuple(kept)


def binds(found: Iterable[Entry]) -> tuple[Bind, ...]:
    """The mount entries, in order; lines that are none of fstab's form are left out."""
    split = [value.split() for value in values(found, BINDS)]
    return tuple(Bind(each[0], each[1].lstrip("/"), tuple(each[3].split(",")), each[2]) for each in split if each[3:])


def allowed(found: Iterable[Entry]) -> tuple[tuple[int | None, int | None], ...]:
    """Majors and minors (None: all) of the character devices that the container may open for reading and writing.

    A host has version 1 or 2 of cgroups; what either's lines allow counts.
    """
    everything = tuple(found)
    lines = [value for key in DEVICES for value in values(everything, key)]
    matches = [re.fullmatch(r"(?:c\s+(\d+|\*):(\d+|\*)\s+rwm?|a\b.*)", line) for line in lines]
    return tuple(dict.fromkeys((_number(match[1]), _number(match[2])) for match in matches if match))


def _number(text: str | None) -> int | None:
    return int(text) if text and text != "*" else None


def is_list(key: str) -> bool:
    """Whether a key may come several times, each adding to the last."""
    return bool(_LISTS.fullmatch(key))


def split(text: str, begin: str, end: str) -> tuple[list[str], list[str], list[str]]:
    """The lines before a block, in it, and after it; `begin` and `end` are the lines around it. Without a block, all
    are before it. Raises ValueError for a block that does not end."""
    lines = text.splitlines()
    marks = [line.strip() for line in lines]
    if begin not in marks:
        return lines, [], []
    start = marks.index(begin)
    if end not in marks[start:]:
        raise ValueError(f"no line {end!r} comes after {begin!r}")
    stop = marks.index(end, start)
    return lines[:start], lines[start + 1 : stop], lines[stop + 1 :]


def merged(text: str, wanted: Iterable[Entry], begin: str, end: str) -> str:
    """A configuration whose block between the lines `begin` and `end` holds `wanted`, and nothing else changed.

    A line elsewhere goes only where it would speak against the block. A new block comes last. Raises ValueError for a
    block that does not end.
    """
    block = tuple(wanted)
    before, _, after = ([line for line in part if not _against(line, block)] for part in split(text, begin, end))
    written = [begin, *(f"{key} = {value}".rstrip() for key, value in block), end] if block else []
    return "".join(f"{line}\n" for line in [*before, *written, *after])


def joined(text: str, wanted: Iterable[Entry]) -> str:
    """A configuration that has `wanted`, and of what it had all that does not speak against it."""
    more = tuple(wanted)
    lines = [line for line in text.splitlines() if set(entries(line)) & {*more} or not _against(line, more)]
    missing = [entry for entry in more if entry not in entries(text)]
    return "\n".join([*lines, *(f"{key} = {value}".rstrip() for key, value in missing)])


def _against(line: str, wanted: tuple[Entry, ...]) -> bool:
    """Whether a line has the same key (of keys that come once), or a mount at the same target."""
    found, targets = entries(line), {each.target for each in binds(wanted)}
    once = {key for key, _ in wanted if not is_list(key)}
    return any(key in once for key, _ in found) or any(each.target in targets for each in binds(found))
