"""Put files and folders on a host, and get them from there."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash.errors import DFlashError, storage_error
from dflash.hosts import transfer
from dflash.hosts.connection import Connection
from dflash.hosts.failures import HostError, LostConnection

Told = Callable[[int, int], object]
"""Called with the bytes done and all bytes, whenever there are more."""


@dataclass(frozen=True)
class Copied:
    """What a transfer was: bytes in all, and how many of them the other end had already."""

    total: int
    kept: int


class TransferFailed(HostError):
    """The far end could not read or write a file."""

    exit_code = 5


def put(connection: Connection, source: Path, place: str, progress: Told = transfer.unseen) -> Copied:
    """Copy the file or folder `source` to `place` there; what is there with the same content is left alone.

    A file appears whole or not at all. A transfer that broke off goes on where it was when it is tried again.

    Raises:
        StorageError: `source` can not be read.
        TransferFailed, LostConnection: the far end could not take it.
    """
    if not source.exists():
        raise storage_error(FileNotFoundError(2, "No such file or directory"), source)
    with _other_end(connection, "receive", place) as (read, write):
        return Copied(*transfer.offer(os.fsencode(source), read, write, progress))


def get(connection: Connection, place: str, target: Path, progress: Told = transfer.unseen) -> Copied:
    """Copy the file or folder `place` there to `target` here; otherwise as `put`."""
    with _other_end(connection, "offer", place) as (read, write):
        return Copied(*transfer.receive(os.fsencode(target), read, write, progress))


@contextlib.contextmanager
def _other_end(
    connection: Connection, role: str, place: str
) -> Iterator[tuple[Callable[[int], bytes], Callable[[bytes], object]]]:
    """Run the far role, and give the two ways to speak with it."""
    code = Path(transfer.__file__).read_text(encoding="utf-8")
    inbox, outbox = _Inbox(), os.pipe()
    failure: list[BaseException] = []

    def run() -> None:
        try:
            with os.fdopen(outbox[0], "rb", buffering=0) as stdin:
                argv = ["python3", "-IS", "-c", code, role, place]
                connection.run(argv, stdin=stdin, stdout=inbox.put)
        except DFlashError as problem:
            failure.append(problem)
        except _Dropped:
            pass  # the command has been killed, as one is whose caller was interrupted
        finally:
            with contextlib.suppress(_Dropped):
                inbox.put(b"")

    runner = threading.Thread(target=run, name=f"{role} {place}")
    runner.start()
    try:
        with os.fdopen(outbox[1], "wb", buffering=0) as pipe:
            yield inbox.read, lambda data: _write_all(pipe.fileno(), data)
    except transfer.TransferError as problem:
        raise TransferFailed(str(problem), layer=connection.layer) from problem
    except (EOFError, BrokenPipeError) as problem:
        if isinstance(problem, BrokenPipeError):  # it gave up while we wrote: what it said last is why
            _raise_what_it_said(inbox, connection)
        inbox.drop()
        runner.join()
        raise failure[0] if failure else LostConnection(str(problem), layer=connection.layer) from problem
    except OSError as problem:
        raise storage_error(problem) from problem
    finally:
        inbox.drop()
        runner.join()


def _raise_what_it_said(inbox: _Inbox, connection: Connection) -> None:
    try:
        with contextlib.suppress(EOFError):
            transfer.get(inbox.read)
    except transfer.TransferError as reason:
        raise TransferFailed(str(reason), layer=connection.layer) from reason


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class _Dropped(Exception):
    """Nobody reads any more."""


class _Inbox:
    """Bytes from one thread to another, never more than a few pieces of them."""

    def __init__(self) -> None:
        self._pieces: queue.Queue[bytes] = queue.Queue(maxsize=8)
        self._rest = memoryview(b"")
        self._dropped = False

    def put(self, data: bytes) -> None:
        """Add bytes; b"" is the end. Waits for room. Raises _Dropped."""
        while not self._dropped:
            with contextlib.suppress(queue.Full):
                self._pieces.put(data, timeout=0.2)
                return
        raise _Dropped

    def read(self, size: int) -> bytes:
        """At most `size` bytes; b"" at the end."""
        if not self._rest:
            self._rest = memoryview(self._pieces.get())
            if not self._rest:
                self._pieces.put(b"")  # the end stays the end
        data, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return data

    def drop(self) -> None:
        """Nobody reads any more."""
        self._dropped = True
