"""The byte stream to the far end of a chain: a program here, or a channel of Fabric's connection."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from typing import IO, Protocol

ERRORS_KEPT = 1 << 16


class ByteStream(Protocol):
    """Both ways, bytes. `read` gives b"" at the end; `errors` is what came on the error side so far (its tail);
    `abort` makes a `read` in another thread come to the end."""

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
        self._tail = bytearray()
        self._collector = threading.Thread(target=self._collect, name="stderr", daemon=True)
        self._collector.start()

    def _collect(self) -> None:
        while data := _pipe(self._process.stderr).read(ERRORS_KEPT):
            self._tail += data
            del self._tail[:-ERRORS_KEPT]

    def write(self, data: bytes) -> None:
        """Write all of `data`. Raises OSError when the program has ended."""
        view = memoryview(data)
        while view:
            view = view[_pipe(self._process.stdin).write(view) :]

    def read(self) -> bytes:
        """The next bytes; b"" at the end."""
        return _pipe(self._process.stdout).read(1 << 18) or b""

    def errors(self) -> str:
        """The end of what the program wrote to its standard error."""
        return bytes(self._tail).decode(errors="replace")

    def abort(self) -> None:
        """Kill the program."""
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
