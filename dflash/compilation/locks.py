"""Locks that the kernel lets go of with their process, however it ends. Where a file system has none, nobody waits:
what is kept is right without them, and two who meet get an error rather than a wrong file."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def among(path: Path, alone: Callable[[], object]) -> Iterator[None]:
    """Be one of those at work, of all processes on all hosts that have `path`, which is made. `alone` is called first
    when there is nobody else: whatever others began and left is dead then. Raises OSError."""
    descriptor = _opened(path, os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
        else:
            alone()
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[int]:
    """A descriptor of `path`, which nobody is `alone` with meanwhile. Raises OSError; FileNotFoundError also when it
    went away while this waited."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        _still_at(path, descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Have `path` for oneself. Raises BlockingIOError when somebody reads it, or OSError, as `reading`."""
    descriptor = _opened(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass
        _still_at(path, descriptor)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """One after the other in `folder`, which is made. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path, flags: int = 0) -> int:
    """For writing, without which NFS gives nobody a lock for himself; another user's file for reading."""
    try:
        return os.open(path, os.O_RDWR | flags, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY)


def _still_at(path: Path, descriptor: int) -> None:
    if not os.path.samestat(path.stat(), os.fstat(descriptor)):
        raise FileNotFoundError(2, os.strerror(2), str(path))
