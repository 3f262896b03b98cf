"""Control groups with little memory, in which the kernel really ends processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def little_memory(size: int) -> Iterator[Path]:
    """A new control group that may have `size` bytes: the file to which a process writes its number to be in it. Where
    none can be made, the test is skipped."""
    older = _ROOT / "memory"
    group = (older if older.is_dir() else _ROOT) / f"dflash-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as failure:
        pytest.skip(f"no control group can be made here: {failure}")
    try:
        limit = group / ("memory.limit_in_bytes" if older.is_dir() else "memory.max")
        if not limit.exists():
            pytest.skip("control groups here do not limit memory")
        limit.write_text(str(size))
        yield group / "cgroup.procs"
    finally:
        until = time.monotonic() + 5
        while (group / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.05)
        group.rmdir()
