"""One run at a time in a root: a lock on work/lock that lives as long as the run or any of its steps."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from dflash.errors import BusyError

_PATIENCE_S = 10.0


def owner(root: Path) -> tuple[int, str] | None:
    """Process id and run that hold the lock of `root`; None when it is free."""
    try:
        descriptor = os.open(root / "work" / "lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(descriptor)
    else:
        return None
    finally:
        os.close(descriptor)


@contextmanager
def holding(root: Path, run: str) -> Iterator[int]:
    """Hold the lock, and yield its descriptor for the steps to inherit.

    Raises BusyError naming the process and the run that hold it. When that process is dead its step is being
    ended by its keeper, so the lock is waited for a moment.
    """
    (root / "work").mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / "work" / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(descriptor, root)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {run}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _take(descriptor: int, root: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pid, run = _owner(descriptor)
    if psutil.pid_exists(pid):
        cure = f"wait for it, stop it with `kill {pid}`, or choose another root folder with --root"
        raise BusyError(f"run {run} (process {pid}) is at work here", where=str(root / "work"), cure=cure)
    import tenacity  # a tenth of a second to import, and seldom needed

    try:
        for attempt in tenacity.Retrying(
            stop=tenacity.stop_after_delay(_PATIENCE_S),
            wait=tenacity.wait_fixed(0.1),
            retry=tenacity.retry_if_exception_type(BlockingIOError),
            reraise=True,
        ):
            with attempt:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        what = f"run {run} (process {pid}) is dead, and a step of it is still ending"
        raise BusyError(what, where=str(root / "work"), cure="wait a moment and run this again") from None


def _owner(descriptor: int) -> tuple[int, str]:
    pid, _, run = os.pread(descriptor, 4096, 0).decode(errors="replace").partition(" ")
    return (int(pid) if pid.isdecimal() else 0), run.strip() or "unknown"
