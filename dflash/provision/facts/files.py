"""What is at a path, what a file says, what is mounted."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dflash.provision.fact import Fact, Output


@dataclass(frozen=True)
class Status:
    """What is at a path, links followed. `kind` is in stat's words (`directory`, `regular empty file`, …), "" where
    nothing is; `user` and `uid` its owner; `device` and `inode` what it is itself, `major` and `minor` what it stands
    for as a device node. `error` is why it could not be looked at."""

    kind: str = ""
    mode: int = 0
    user: str = ""
    uid: int = -1
    device: int = 0
    inode: int = 0
    major: int = 0
    minor: int = 0
    error: str = ""

    def is_ground_of(self, who: str) -> bool:
        """Whether it is a directory of `who`, a user's name or number, who may make something in it."""
        return self.kind == "directory" and who in (self.user, str(self.uid)) and self.mode & 0o300 == 0o300


_STAT = ("stat", "-L", "-c", "%F|%a|%U|%u|%d|%i|%t|%T", "--")


def stat_of(path: str) -> Fact[Status]:
    """What is at `path`."""
    return Fact(f"stat {path}", (*_STAT, path), parse_stat)


_GROUND = 'place=$1; shift; until [ -e "$place" ]; do place=$(dirname -- "$place"); done; exec "$@" "$place"'


def ground_of(path: str) -> Fact[Status]:
    """What is at `path`, or at the nearest folder above it that is there."""
    return Fact(f"ground of {path}", ("sh", "-c", _GROUND, "sh", path, *_STAT), parse_stat)


def parse_stat(output: Output) -> Status:
    """stat's line; majors and minors are hexadecimal there, modes octal."""
    if not output.ok:
        missing = "No such file or directory" in output.stderr or "Not a directory" in output.stderr
        return Status(error="" if missing else output.stderr.strip() or f"stat ended with {output.status}")
    kind, mode, user, uid, device, inode, major, minor = output.stdout.strip().split("|")
    return Status(kind, int(mode, 8), user, int(uid), int(device), int(inode), int(major, 16), int(minor, 16))


def text_of(path: str) -> Fact[str | None]:
    """What the file at `path` says; None where there is none, or where it can not be read."""
    return Fact(f"text {path}", ("cat", "--", path), lambda output: output.stdout if output.ok else None)


def table_of(path: str) -> Fact[str | None]:
    """What the file at `path` says, nothing where there is none; None where it can not be read."""
    script = '[ ! -e "$1" ] || cat -- "$1"'
    return Fact(f"table {path}", ("sh", "-c", script, "sh", path), lambda output: output.stdout if output.ok else None)


def real_path(path: str) -> Fact[str]:
    """`path` without links; as it is where that can not be said."""
    return Fact(
        f"real {path}", ("readlink", "-f", "--", path), lambda output: output.stdout.rstrip("\n") if output.ok else path
    )


# Of btrfs, mountinfo gives numbers that are no device's; only the source's name leads to its device.
_DEVICE = 'stat -L -c "%t %T" -- "$(df -P -- "$1" | sed -n "2s/ .*//p")"'


def device_of(place: str) -> Fact[tuple[int, int] | None]:
    """Major and minor of the block device that the file system at `place` names as its source."""
    return Fact(f"device of {place}", ("sh", "-c", _DEVICE, "sh", place), parse_device)


def parse_device(output: Output) -> tuple[int, int] | None:
    """Two hexadecimal numbers, 0 for what is no device."""
    match = re.fullmatch(r"([0-9a-f]+) ([0-9a-f]+)\n", output.stdout)
    return (int(match[1], 16), int(match[2], 16)) if output.ok and match else None


@dataclass(frozen=True)
class Mounted:
    """A line of mountinfo: where, what the file system calls its source, its type, and its device's numbers."""

    place: str
    source: str
    type: str
    major: int
    minor: int


MOUNTED = Fact("mounts", ("cat", "/proc/self/mountinfo"), lambda output: parse_mounts(output.stdout))
"""What is mounted there, by place; of several at one place, the last, which covers the others."""


def parse_mounts(text: str) -> dict[str, Mounted]:
    """`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`: fields are fixed up to the sixth, and after
    the lone dash."""
    found = {}
    for line in text.splitlines():
        words, after = line.split(), line.partition(" - ")[2].split()
        if len(words) > 5 and len(after) > 1:
            major, minor = words[2].split(":")
            place = _unescaped(words[4])
            found[place] = Mounted(place, _unescaped(after[1]), after[0], int(major), int(minor))
    return found


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)
