"""One run at a time in a root: a lock on work/lock that lives as long as the run or any of its steps."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from dflash.errors import BusyError

_PATIENCE_S = 10.0
_POLL_S = 0.5
_ASKING_S = 0.2
"""Far longer than `owner` holds a lock, to find out whether somebody does."""


@dataclass(frozen=True)
class Owner:
    """Who holds a lock: a process, its run, and whom that is done for (`user@machine`) when they sent it from
    elsewhere."""

    pid: int
    run: str
    of: str = ""

    def __str__(self) -> str:
        return (
            f"run {self.run} of {self.of} (process {self.pid})" if self.of else f"run {self.run} (process {self.pid})"
        )


def owner(root: Path) -> Owner | None:
    """Who holds the lock of `root`; None when it is free, whatever a process that has died left in it."""
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
def holding(root: Path, run: str, of: str = "", waits: Callable[[str], object] | None = None) -> Iterator[int]:
    """Hold the lock for a run, `of` somebody elsewhere, and yield its descriptor for the steps to inherit. With
    `waits`, which is told for whom, it is waited for however long that takes.

    Raises BusyError naming the process and the run that hold it. When that process is dead its step is being
    ended by its keeper, so the lock is waited for a moment.
    """
    (root / "work").mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / "work" / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(descriptor, root, of, waits)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {run} {of}\n".encode(), 0)
        try:
            yield descriptor
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _take(descriptor: int, root: Path, of: str, waits: Callable[[str], object] | None) -> None:
    told, asking = None, time.monotonic() + _ASKING_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            held = _owner(descriptor)
        if time.monotonic() < asking:
            time.sleep(_ASKING_S / 20)
            continue
        if not waits:
            break
        if held != told:
            waits(f"waits for {held}")
            told = held
        time.sleep(_POLL_S)
    if psutil.pid_exists(held.pid):
        raise BusyError(f"{held} is at work here", where=str(root / "work"), cure=_cure(held, of))
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
        what = f"{held} is dead, and a step of it is still ending"
        raise BusyError(what, where=str(root / "work"), cure="wait a moment and run this again") from None


def _cure(held: Owner, of: str) -> str:
    if of:  # who reads this is elsewhere
        stop = f"./inv stop {held.run}, where it was started" if held.of else f"`kill {held.pid}`, there"
        return f"wait for it with --wait, or end it: {stop}"
    stop = f"./inv stop {held.run} where it was started" if held.of else f"`kill {held.pid}`"
    return f"wait for it, stop it with {stop}, or choose another root folder with --root"


def _owner(descriptor: int) -> Owner:
    words = os.pread(descriptor, 4096, 0).decode(errors="replace").strip().split(" ", 2)
    pid, run, of = [*words, "", ""][:3]
    return Owner(int(pid) if pid.isdecimal() else 0, run or "unknown", of)
