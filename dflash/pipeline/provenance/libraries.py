"""The shared libraries that a process has really loaded, of those that compute or communicate."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from dflash.pipeline.provenance.hashes import Hashes

_COUNTS = re.compile(
    r"lib(?:cudart|cublas|cublasLt|cudnn\w*|nccl|nvrtc|nvrtc-builtins|nvJitLink|cufft|curand|cusparse|cusparseLt|cusolver"
    r"|cupti|nvshmem\w*|cuda|nvidia-ptxjitcompiler|torch|torch_\w+|c10|c10_cuda|triton|gomp|iomp5|omp|mkl_\w+|openblas\w*"
    r"|scipy_openblas\w*|dnnl|c|m|stdc\+\+)(?:-[0-9a-f.]+)?\.so[\d.]*"
)


def loaded(maps: str) -> list[str]:
    """The paths of those libraries in the text of /proc/PID/maps, sorted. A file that was deleted since is none."""
    found = set()
    for line in maps.splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        if path and not path.endswith(" (deleted)") and _COUNTS.fullmatch(PurePath(path).name):
            found.add(path)
    return sorted(found)


def hashed(paths: Iterable[str], hashes: Hashes) -> dict[str, str]:
    """The SHA-256 of each, by the file's name; of a second file of the same name, as two CUDAs side by side bring them,
    by its path. What can not be read any more is left out."""
    found: dict[str, str] = {}
    for path in sorted(paths):
        name = PurePath(path).name
        try:
            digest = hashes.of(path)
        except OSError:
            continue
        if found.setdefault(name, digest) != digest:
            found[path] = digest
    return found
