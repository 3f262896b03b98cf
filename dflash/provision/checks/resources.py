"""What the end of the chain has to work with: a whole Python, a compiler, memory, disk, the index it was told of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dflash.finding import Finding, Severity
from dflash.provision.checks.faults import fault
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.index import INDEX
from dflash.provision.facts.resources import RESOURCES, Disk, disk_of
from dflash.provision.facts.system import COMPILERS, PYTHON

HOST: tuple[Fact[Any], ...] = ()
INSIDE: tuple[Fact[Any], ...] = (PYTHON, COMPILERS, RESOURCES, INDEX)

GIB = 2**30
_MEMORY, _DISK, _DISK_SOON = 4, 3, 20


def asked_inside(want: Wanted) -> tuple[Fact[Any], ...]:
    """What of the inside depends on where the work is kept: beside INSIDE."""
    return (_disk(want),)


def _disk(want: Wanted) -> Fact[Disk | None]:
    return disk_of(want.root or "~")


def judge(host: Facts, inside: Facts, want: Wanted) -> Iterator[Finding]:
    """One finding each."""
    python, compilers = inside[PYTHON], inside[COMPILERS]
    if python.lacks:
        found = f"{python.version} has no {', '.join(python.lacks)}"
        yield fault("python-not-whole", "Python", found, "install python3, not python3-minimal alone")
    else:
        yield Finding("ok", "Python", python.version or "none")
    hosts_own = [f"{name} {compilers[name]}" for name in ("g++", "clang++") if name in compilers]
    if hosts_own:
        yield Finding("ok", "C++ compiler", ", ".join(hosts_own))
    else:
        cure = "install g++ there (Debian: apt-get install g++): torch.compile calls it for every graph"
        yield fault("no-compiler", "C++ compiler", "neither g++ nor clang++ is there", cure)
    yield from memory(inside)
    yield from disk(inside, want)
    index = inside[INDEX]
    if index.problem:
        cure = "correct it in the configuration of uv or pip there, or give wheels along: env.create --wheels FOLDER"
        yield fault("index-not-reached", "package index", f"{index.host}: {index.problem}", cure, "warn")
    elif index.host:
        yield Finding("ok", "package index", f"{index.host} answers")


def memory(inside: Facts) -> Iterator[Finding]:
    """What can be had now, under the container's limit."""
    read = inside[RESOURCES]
    if read.memory is None:
        return
    limit = "" if read.memory.limit is None else f", under a limit of {read.memory.limit / GIB:.1f} GiB"
    cpus = "" if read.cpus is None else f"; {read.cpus:g} CPUs"
    found = f"{read.memory.available / GIB:.1f} GiB available{limit}{cpus}"
    if read.memory.available < _MEMORY * GIB:
        cure = "raise the container's limit" if limit else "stop other programs, or use a larger machine"
        yield fault("little-memory", "memory", f"{found}; {_MEMORY} GiB are needed", cure)
    else:
        yield Finding("ok", "memory", found)


def disk(inside: Facts, want: Wanted) -> Iterator[Finding]:
    """Where the work is kept."""
    place = inside[_disk(want)]
    if place is None:
        return
    found = f"{place.free / GIB:.1f} GiB free in {place.mount}, where {want.root or 'the home folder'} is"
    if place.free < _DISK_SOON * GIB:
        cure = "free space there, or name another root: in hosts.yaml"
        severity: Severity = "block" if place.free < _DISK * GIB else "warn"
        yield fault("little-disk", "disk", f"{found}; {_DISK_SOON} GiB are soon used", cure, severity)
    else:
        yield Finding("ok", "disk", found)
