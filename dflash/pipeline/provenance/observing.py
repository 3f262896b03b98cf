"""What is only known inside a step's process, at its end: what it really loaded, and how torch was set."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from dflash.pipeline.provenance.hashes import Hashes
from dflash.pipeline.provenance.libraries import hashed, loaded
from dflash.pipeline.provenance.variables import kept, of_workers

_FIRST_S, _LONGEST_S = 1.0, 60.0
"""Workers load most at once and little later; reading what a process has mapped holds it up for a moment."""


class Observing:
    """Watches the processes that a step starts while it runs: at its end they are gone. Use as a context manager. Of
    variables that are named `secrets` no value is kept."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        self._secrets = secrets
        self._libraries: set[str] = set()
        self._workers: dict[int, dict[str, str]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="observing", daemon=True)

    def __enter__(self) -> Observing:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()

    def observed(self, root: Path) -> dict[str, Any]:
        """{"libraries": SHA-256 by file name, "variables": those of the step, "workers": those of the processes of a
        torchrun, "torch": versions as torch says them, "flags": what decides which kernels run}, the last two empty
        where the step did not import torch. `root` is where hashes are remembered."""
        self._over.set()
        self._thread.join()  # what it is just noting is read below
        self._look()
        with Hashes(root) as hashes:
            found = hashed({*_mapped("self"), *self._libraries}, hashes)
        torch = sys.modules.get("torch")
        return {
            "libraries": found,
            "variables": kept(os.environ, self._secrets),
            "workers": of_workers(self._workers.values()),
            "torch": _versions(torch) if torch else {},
            "flags": _flags(torch) if torch else {},
        }

    def _watch(self) -> None:
        wait = _FIRST_S
        while not self._over.wait(wait):
            self._look()
            wait = min(2 * wait, _LONGEST_S)

    def _look(self) -> None:
        for pid in _descendants(os.getpid()):
            environ = _environ(pid)
            if "RANK" in environ:
                self._workers[pid] = kept(environ, self._secrets)
                self._libraries.update(_mapped(str(pid)))


def _mapped(pid: str) -> list[str]:
    with contextlib.suppress(OSError):
        return loaded(Path("/proc", pid, "maps").read_text(errors="surrogateescape"))
    return []


def _environ(pid: int) -> dict[str, str]:
    with contextlib.suppress(OSError):
        words = Path("/proc", str(pid), "environ").read_text(errors="replace").split("\0")
        return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}
    return {}


def _descendants(pid: int) -> Iterator[int]:
    for file in Path("/proc", str(pid), "task").glob("*/children"):
        with contextlib.suppress(OSError):
            for word in file.read_text().split():
                yield int(word)
                yield from _descendants(int(word))


def _versions(torch: ModuleType) -> dict[str, Any]:
    """Also a hash of all that torch says about how it was built. NCCL and cuDNN are asked only where there is CUDA."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "config": hashlib.sha256(torch.__config__.show().encode()).hexdigest(),
        "cuda": torch.version.cuda,
    }
    if torch.version.cuda and torch.cuda.is_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["cudnn"] = torch.backends.cudnn.version()
        found["devices"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return found


def _flags(torch: ModuleType) -> dict[str, Any]:
    backends = torch.backends
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn.deterministic": backends.cudnn.deterministic,
        "cudnn.benchmark": backends.cudnn.benchmark,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
    }
