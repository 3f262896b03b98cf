"""The byte stream to the far end of a chain: a program here, or a channel of Fabric's connection."""

from __future__ import annotations

import os
import select
import subprocess
import threading
from collections.abc import Sequence
from typing import IO, Protocol

ERRORS_KEPT = 1 << 16
LOOK_MS = 100
"""How often a waiting read or write looks whether the stream was given up: other processes may hold a pipe's far end,
so that killing the program does not end the wait."""


class ByteStream(Protocol):
    """Both ways, bytes. `read` gives b"" at the end; `errors` is what came on the error side so far (its tail);
    `abort` makes a `read` and a `write` in other threads come to an end; it waits for nothing."""

    def write(self, data: bytes) -> None: ...

    def read(self) -> bytes: ...

    def errors(self) -> str: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...

    def status(self, timeout: float) -> int | None: ...


class ProgramStream:
    """The standard streams of a program on this machine."""

    def __init__(self, argv: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True)
        os.set_blocking(_pipe(self._process.stdin).fileno(), False)
        self._given_up = False
        self._tail = bytearray()
        self._collector = threading.Thread(target=self._collect, name="stderr", daemon=True)
        self._collector.start()

    def _collect(self) -> None:
        while data := _pipe(self._process.stderr).read(ERRORS_KEPT):
            self._tail += data
            del self._tail[:-ERRORS_KEPT]

    def write(self, data: bytes) -> None:
        """Write all of `data`. Raises OSError when the program has ended, or the stream was given up."""
        pipe, view = _pipe(self._process.stdin), memoryview(data)
        while view:
            if not self._ready(pipe, select.POLLOUT):
                raise OSError("the stream was given up")
            view = view[pipe.write(view) or 0 :]

    def read(self) -> bytes:
        """The next bytes; b"" at the end."""
        pipe = _pipe(self._process.stdout)
        return (pipe.read(1 << 18) or b"") if self._ready(pipe, select.POLLIN) else b""

    def _ready(self, pipe: IO[bytes], event: int) -> bool:
        """Wait until `pipe` can be used; False when the stream was given up."""
        waiting = select.poll()
        waiting.register(pipe, event)
        while not self._given_up:
            if waiting.poll(LOOK_MS):
                return True
        return False

    def errors(self) -> str:
        """The end of what the program wrote to its standard error."""
        return bytes(self._tail).decode(errors="replace")

    def abort(self) -> None:
        """Kill the program, and wait for the pipes no longer."""
        self._given_up = True
        self._process.kill()

    def close(self) -> None:
        """End the program's input; a program that does not end on that is killed after five seconds."""
        _pipe(self._process.stdin).close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._collector.join(5)
        _pipe(self._process.stdout).close()
        _pipe(self._process.stderr).close()

    def status(self, timeout: float) -> int | None:
        """The exit status, minus a signal's number when one ended it; None when it runs on."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._collector.join(1)
        return status


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
