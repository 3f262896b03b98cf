"""Reads this machine. A fact has a reader, which touches the machine, and a pure parser of what that got."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_PATIENCE = 120.0  # seconds for a child; a cold disk can need many to import torch


@dataclass(frozen=True)
class PythonFact:
    version: str
    executable: str


@dataclass(frozen=True)
class PlatformFact:
    system: str
    machine: str
    libc: str


@dataclass(frozen=True)
class TorchFact:
    """`cuda` is the CUDA version of the build, None for a CPU build; `error` says why the import failed."""

    version: str | None = None
    cuda: str | None = None
    seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True)
class CompilerFact:
    """`wanted` is what torch.compile will call; `alternative` another compiler, when that one is missing."""

    wanted: str
    path: str | None = None
    version: str = ""
    error: str | None = None
    alternative: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class DiskFact:
    """Free bytes for this user at `path`; `error` says why nothing can be written there."""

    path: str
    free: int = 0
    error: str | None = None


@dataclass(frozen=True)
class MemoryFact:
    """Bytes that can be had now, and the cgroup's limit where one is below the machine's memory."""

    available: int
    limit: int | None = None


@dataclass(frozen=True)
class Facts:
    python: PythonFact
    platform: PlatformFact
    torch: TorchFact
    compiler: CompilerFact | None
    disk: DiskFact
    memory: MemoryFact
    cpus: float
    shm: DiskFact


def read_python() -> PythonFact:
    return PythonFact(platform.python_version(), sys.executable)


def read_platform() -> PlatformFact:
    return PlatformFact(platform.system(), platform.machine(), " ".join(platform.libc_ver()).strip())


_IMPORT_TORCH = """
import json, time
start = time.monotonic()
import torch
seconds = time.monotonic() - start
assert torch.ones(3).sum().item() == 3
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "seconds": seconds}))
"""


def read_torch(executable: str = sys.executable) -> TorchFact:
    """Import torch in a child, since a broken build can kill the process that imports it."""
    # In an empty folder, since `-c` looks for modules in the working folder first.
    with tempfile.TemporaryDirectory(prefix="dflash-check-") as folder:
        return parse_torch(*_run([executable, "-c", _IMPORT_TORCH], folder))


def parse_torch(status: int, out: str, complaints: str) -> TorchFact:
    if status == 0:
        return TorchFact(**json.loads(out.splitlines()[-1]))
    return TorchFact(error=_last_words(status, complaints))


# As torch.compile does on a CPU: Python's headers, OpenMP, a shared object that is loaded into a process.
_SOURCE = """#include <Python.h>
#include <omp.h>
extern "C" int dflash_probe() { return omp_get_max_threads() > 0 ? PY_MAJOR_VERSION : 0; }
"""
_FLAGS = ("-shared", "-fPIC", "-O1", "-std=c++20", "-fopenmp")
_LOAD = "import ctypes, sys; assert ctypes.CDLL(sys.argv[1]).dflash_probe() == 3"


def read_compiler(environ: Mapping[str, str] = os.environ) -> CompilerFact:
    """Compile and load a shared object with the compiler that torch.compile will call: $CXX, else g++."""
    wanted = environ.get("CXX", "g++")
    path = shutil.which(wanted, path=environ.get("PATH"))
    if path is None:
        others = (name for name in ("g++", "clang++", "c++") if shutil.which(name, path=environ.get("PATH")))
        return CompilerFact(wanted, alternative=next(others, None))
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dflash-check-") as folder:
        version = parse_compiler_version(_run([path, "--version"], folder)[1])
        (Path(folder) / "probe.cpp").write_text(_SOURCE)
        headers = sysconfig.get_paths()["include"]
        status, _, complaints = _run([path, *_FLAGS, f"-I{headers}", "probe.cpp", "-o", "probe.so"], folder)
        if status == 0:  # a temporary folder mounted noexec lets the file be made, but not loaded
            status, _, complaints = _run([sys.executable, "-ISc", _LOAD, f"{folder}/probe.so"], folder)
    error = None if status == 0 else _last_words(status, complaints)
    return CompilerFact(wanted, path, version, error, seconds=time.monotonic() - start)


def parse_compiler_version(out: str) -> str:
    """`g++ (Debian 12.2.0-14) 12.2.0` -> 12.2.0; `Apple clang version 15.0.0 (...)` -> 15.0.0."""
    first = out.splitlines()[0] if out else ""
    numbers = re.findall(r"(?<![\w.-])\d+\.\d+(?:\.\d+)*", re.sub(r"\([^)]*\)", "", first))
    return numbers[-1] if numbers else ""


def read_disk(path: Path) -> DiskFact:
    """Free space where `path` is or would be, and whether a file can be made there."""
    shown = str(path.absolute())
    there = path.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        free = shutil.disk_usage(there).free
        with tempfile.NamedTemporaryFile(dir=there, prefix=".dflash-check-") as file:
            file.write(b"x")
            file.flush()
        return DiskFact(shown, free)
    except OSError as failure:
        return DiskFact(shown, error=failure.strerror or str(failure))


def read_memory() -> MemoryFact:
    meminfo = Path("/proc/meminfo").read_text()
    return parse_memory(meminfo, [_texts(folder, _MEMORY_FILES) for folder in _cgroup_folders("memory")])


_MEMORY_FILES = (
    ("limit", ("memory.max", "memory.limit_in_bytes")),
    ("used", ("memory.current", "memory.usage_in_bytes")),
    ("stat", ("memory.stat",)),
)


def parse_memory(meminfo: str, levels: Iterable[Mapping[str, str]]) -> MemoryFact:
    """/proc/meminfo and, for each cgroup from the process's own up, its limit, use and statistics."""
    kib = {key: int(value) for key, value in re.findall(r"^(\w+): +(\d+) kB", meminfo, re.MULTILINE)}
    total, available, lowest = kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024, None
    for level in levels:
        limit = level.get("limit", "max").strip()
        if limit == "max" or int(limit) >= total:
            continue
        # The kernel gives cached file pages back before it kills anything.
        cached = re.search(r"^(?:total_)?inactive_file (\d+)", level.get("stat", ""), re.MULTILINE)
        used = int(level.get("used", "0")) - (int(cached.group(1)) if cached else 0)
        available = min(available, int(limit) - max(used, 0))
        lowest = int(limit) if lowest is None else min(lowest, int(limit))
    return MemoryFact(max(available, 0), lowest)


def read_cpus() -> float:
    """CPUs this process may use: its affinity, cut by a cgroup quota (so it may be a fraction)."""
    levels = [_texts(folder, (("max", ("cpu.max",)),)) for folder in _cgroup_folders("cpu")]
    return parse_cpus(len(os.sched_getaffinity(0)), [level.get("max", "max") for level in levels])


def parse_cpus(affinity: int, quotas: Iterable[str]) -> float:
    """`cpu.max` is `quota period` in microseconds, or `max period`."""
    count = float(affinity)
    for text in quotas:
        words = text.split()
        if len(words) == 2 and words[0] != "max":
            count = min(count, int(words[0]) / int(words[1]))
    return count


def parse_cgroup(text: str, controller: str) -> str | None:
    """This process's cgroup folder, from /proc/self/cgroup: version 1 by controller, else version 2."""
    unified = None
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return f"/sys/fs/cgroup/{controller}{path}"
        if not controllers:
            unified = f"/sys/fs/cgroup{path}"
    return unified


def _cgroup_folders(controller: str) -> list[Path]:
    """The cgroup's folder and those above it: a limit anywhere on the way holds."""
    try:
        own = parse_cgroup(Path("/proc/self/cgroup").read_text(), controller)
    except OSError:
        return []
    top = Path("/sys/fs/cgroup")
    if own is None:
        return []
    return [each for each in (Path(own), *Path(own).parents) if each.is_relative_to(top)]


def _texts(folder: Path, files: Iterable[tuple[str, tuple[str, ...]]]) -> dict[str, str]:
    found = {}
    for key, names in files:
        for name in names:
            try:
                found[key] = (folder / name).read_text()
            except OSError:
                continue
            break
    return found


def _run(words: list[str], folder: str) -> tuple[int, str, str]:
    """Exit status, output and complaints; status 127 when it could not start, 124 when it took too long."""
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer in {_PATIENCE:.0f} s"
    except OSError as failure:
        return 127, "", failure.strerror or str(failure)
    return done.returncode, done.stdout, done.stderr


def _last_words(status: int, complaints: str) -> str:
    if status < 0:
        return f"the process died of {signal.Signals(-status).name}"
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line]  # a compiler's first error, not its summary
    return (telling or lines[-1:] or [f"exit status {status}"])[0][:200]
