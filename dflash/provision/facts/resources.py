"""What a machine, or a container on it, has to give: memory, CPUs, disks, shared memory, memory that may be locked."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from dflash.provision.fact import Fact, Output
from dflash.provision.facts.here import MemoryFact, parse_cpus, parse_memory


@dataclass(frozen=True)
class Resources:
    """Bytes of memory, and CPUs (a fraction under a quota), as far as the cgroups let; None where it was not said."""

    memory: MemoryFact | None
    cpus: float | None


_RESOURCES = """\
echo "nproc:$(nproc)"
grep -sHE "^Mem(Total|Available):" /proc/meminfo
while IFS=: read -r _ controllers path; do
    case ",$controllers," in
    ,,) top=/sys/fs/cgroup ;;
    *,memory,*) top=/sys/fs/cgroup/memory ;;
    *,cpu,*) top=/sys/fs/cgroup/cpu ;;
    *) continue ;;
    esac
    folder=$top${path%/}
    while :; do
        grep -sH "" "$folder/memory.max" "$folder/memory.limit_in_bytes" "$folder/memory.current" \\
            "$folder/memory.usage_in_bytes" "$folder/cpu.max"
        grep -sHE "^(total_)?inactive_file " "$folder/memory.stat"
        [ "${#folder}" -le "${#top}" ] && break
        folder=${folder%/*}
    done
done </proc/self/cgroup
:
"""
_FILES = {
    "memory.max": "limit",
    "memory.limit_in_bytes": "limit",
    "memory.current": "used",
    "memory.usage_in_bytes": "used",
    "memory.stat": "stat",
    "cpu.max": "cpu",
}


def _resources(output: Output) -> Resources:
    nproc, meminfo = "", []
    levels: dict[str, dict[str, str]] = defaultdict(dict)
    for line in output.stdout.splitlines():
        path, _, text = line.partition(":")
        folder, _, name = path.rpartition("/")
        if path == "nproc":
            nproc = text
        elif path == "/proc/meminfo":
            meminfo.append(text)
        elif name in _FILES:
            levels[folder][_FILES[name]] = text
    told = "\n".join(meminfo)
    memory = parse_memory(told, levels.values()) if "MemTotal:" in told and "MemAvailable:" in told else None
    quotas = [level["cpu"] for level in levels.values() if "cpu" in level]
    return Resources(memory, parse_cpus(int(nproc), quotas) if nproc.isdigit() else None)


RESOURCES = Fact("resources", ("sh", "-c", _RESOURCES), _resources)


@dataclass(frozen=True)
class Disk:
    """A mounted file system: bytes in all, and free for this user."""

    mount: str
    size: int
    free: int


def holding(mounts: tuple[Disk, ...], path: str) -> Disk | None:
    """The file system that `path` is on, or would be, as far as the mounts tell."""
    inside = [each for each in mounts if f"{path}/".startswith(each.mount.rstrip("/") + "/")]
    return max(inside, key=lambda each: len(each.mount), default=None)


def _disks(output: Output) -> tuple[Disk, ...]:
    rows = re.findall(r"^.+?\s+(\d+)\s+\d+\s+(\d+)\s+(?:\d+%|-)\s+(/.*)$", output.stdout, re.MULTILINE)
    return tuple(Disk(mount, int(size) * 1024, int(free) * 1024) for size, free, mount in rows)


DISKS = Fact("disks", ("df", "-Pk"), _disks)
"""The mounts of a machine. A device that is mounted at several places is there once."""


def _disk(output: Output) -> Disk | None:
    rows = _disks(output)
    return rows[-1] if rows else None


_DISK_OF = """\
place=$1
case $place in "~" | "~/"*) place=${HOME:-/}${place#"~"} ;; esac
until [ -e "$place" ]; do place=$(dirname -- "$place"); done
df -Pk -- "$place"
"""


def disk_of(path: str) -> Fact[Disk | None]:
    """The file system that `path` is on, or would be, through links and bind mounts. `~` is the home folder there."""
    return Fact("disk of the work", ("sh", "-c", _DISK_OF, "sh", path), _disk)


def _memlock(output: Output) -> int | None:
    word = output.stdout.strip()
    if word == "unlimited":
        return None
    return int(word) * 1024 if word.isdigit() else 0


MEMLOCK = Fact("locked memory", ("sh", "-c", "ulimit -l"), _memlock)
"""Bytes that a process may lock in memory; None: as many as it likes."""
