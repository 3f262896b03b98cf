"""Judges facts: pure functions from what was read to findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from dflash.environments.spec import EnvironmentSpec
from dflash.environments.verify import REMAKE
from dflash.finding import Finding
from dflash.provision.facts.here import CompilerFact, DiskFact, Facts, TorchFact

GIB = 2**30
_SMALL_SHM = 64 * 2**20


@dataclass(frozen=True)
class CheckConfig:
    """What this machine must have. GiB are free or available now, not installed."""

    min_disk_gib: float = 3.0
    min_memory_gib: float = 4.0
    min_cpus: int = 1
    compile_test: bool = True
    environment: str = "local"


def judge(facts: Facts, config: CheckConfig, spec: EnvironmentSpec) -> list[Finding]:
    """One finding or more for each fact, in the order a person would look."""
    return [
        *python(facts, spec),
        *platform(facts),
        *torch(facts.torch, spec),
        *compiler(facts.compiler),
        *disk(facts.disk, config.min_disk_gib),
        *memory(facts, config.min_memory_gib),
        *cpus(facts.cpus, config.min_cpus),
        *shared_memory(facts.shm),
    ]


def python(facts: Facts, spec: EnvironmentSpec) -> Iterator[Finding]:
    found = f"{facts.python.version} ({facts.python.executable})"
    if facts.python.version in SpecifierSet(spec.python, prereleases=True):
        yield Finding("ok", "Python", found)
    else:
        cure = "install one in that range, and name it: PYTHON=/path/to/python3 ./inv"
        yield Finding("block", "Python", f"{found} is not in the range {spec.python}", cure)


def platform(facts: Facts) -> Iterator[Finding]:
    parts = (facts.platform.system, facts.platform.machine, facts.platform.libc)
    found = " ".join(part for part in parts if part)
    if facts.platform.system == "Linux" and facts.platform.machine in ("x86_64", "aarch64"):
        yield Finding("ok", "platform", found)
    else:
        yield Finding("block", "platform", found, "the lock has wheels for Linux on x86-64 and aarch64 only")


def torch(fact: TorchFact, spec: EnvironmentSpec) -> Iterator[Finding]:
    if fact.error:
        yield Finding("block", "torch", f"can not be imported: {fact.error}", REMAKE)
    elif fact.version != spec.torch:
        yield Finding("block", "torch", f"{fact.version}; env.yaml declares {spec.torch}", REMAKE)
    elif fact.cuda != spec.cuda:
        yield Finding("block", "torch", f"built for CUDA {fact.cuda}; env.yaml declares {spec.cuda}", REMAKE)
    else:
        yield Finding("ok", "torch", f"{fact.version}, imported in {fact.seconds:.1f} s")


def compiler(fact: CompilerFact | None) -> Iterator[Finding]:
    if fact is None:
        return
    if fact.path is None and fact.alternative:
        cure = f"torch.compile looks for $CXX, else g++: CXX={fact.alternative} ./inv …, or install g++"
        yield Finding("block", "C++ compiler", f"{fact.wanted} is not there, {fact.alternative} is", cure)
    elif fact.path is None:
        cure = "install one (Debian: apt-get install g++), or name one: CXX=/path/to/g++ ./inv …"
        yield Finding("block", "C++ compiler", f"{fact.wanted} is not there", cure)
    elif fact.error:
        cure = "make it compile, link OpenMP and load; torch.compile does the same for every graph"
        if "Python.h" in fact.error:
            cure = "install Python's headers (Debian: apt-get install python3-dev)"
        elif "omp" in fact.error:
            cure = "install the compiler's OpenMP library (Debian: libgomp1 for g++, libomp-dev for clang)"
        yield Finding("block", "C++ compiler", f"{fact.path} {fact.version}: {fact.error}", cure)
    else:
        found = f"{fact.path} {fact.version}; a test file compiled and loaded in {fact.seconds:.1f} s"
        yield Finding("ok", "C++ compiler", found)


def disk(fact: DiskFact, minimum: float) -> Iterator[Finding]:
    free = fact.free / GIB
    found = f"{free:.1f} GiB free in {fact.path}"
    if fact.error:
        cure = "check its owner, mode and mount, or choose another folder with --root"
        yield Finding("block", "disk", f"{fact.path} can not be written: {fact.error}", cure)
    elif free < minimum:
        cure = f"free {minimum - free:.1f} GiB, or choose another folder with --root"
        yield Finding("block", "disk", f"{found}; {minimum:g} are needed", cure)
    else:
        yield Finding("ok", "disk", found)


def memory(facts: Facts, minimum: float) -> Iterator[Finding]:
    available = facts.memory.available / GIB
    found = f"{available:.1f} GiB available"
    if facts.memory.limit is not None:
        found += f", under a cgroup limit of {facts.memory.limit / GIB:.1f} GiB"
    if available < minimum:
        limited = facts.memory.limit is not None and facts.memory.limit < minimum * GIB
        cure = "raise the container's limit" if limited else "stop other programs, or use a larger machine"
        yield Finding("block", "memory", f"{found}; {minimum:g} are needed", cure)
    else:
        yield Finding("ok", "memory", found)


def cpus(count: float, minimum: int) -> Iterator[Finding]:
    if count < minimum:
        cure = "raise the container's CPU quota or affinity"
        yield Finding("block", "CPUs", f"{count:g}; {minimum} are needed", cure)
    else:
        yield Finding("ok", "CPUs", f"{count:g}")


def shared_memory(fact: DiskFact) -> Iterator[Finding]:
    if fact.error:
        # Threads need none; worker processes do.
        yield Finding("warn", "shared memory", f"{fact.path}: {fact.error}", "mount a tmpfs on /dev/shm")
    elif fact.free < _SMALL_SHM:
        found = f"{fact.free / 2**20:.0f} MiB free in {fact.path}"
        yield Finding("warn", "shared memory", found, "give the container more (docker: --shm-size=1g)")
    else:
        yield Finding("ok", "shared memory", f"{fact.free / GIB:.1f} GiB free in {fact.path}")
