"""The runner's side of a step's process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash.pipeline.keys import HOME
from dflash.pipeline.redaction import Redaction
from dflash.pipeline.stopping import GRACE_S

_NEVER_BEGAN = 1  # the status of a Python that can not import what it must
_PIPE = 1 << 20  # bytes: a step that says much waits seldom

_WORDS = ("event", "reason")
"""Of an event, what is no text of the step's."""

_SPINS = 1000  # what libgomp itself takes when it knows of more threads than cores


def calm(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with OpenMP threads that wait asleep after a moment, unless it says how they are to wait.

    libgomp spins for milliseconds by default. While another program has a core, every parallel region then waits
    for a thread that can not run: measured on two cores beside one busy program, training took ten times as long.
    """
    if environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        return dict(environ)
    return {**environ, "GOMP_SPINCOUNT": str(_SPINS)}


class Forks:
    """Starts the processes of steps that have an environment in common, one after the other, by forking one that has
    imported all they need. Use as a context manager; leaving it ends that process."""

    def __init__(self, environ: Mapping[str, str], kinds: str, folder: Path, log: Path) -> None:
        paths = [str(HOME), *filter(None, [environ.get("PYTHONPATH")])]
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as failing, theirs, log.open("ab") as errors:
            failing.callback(self._socket.close)
            words = ["-m", "dflash.pipeline.forking", kinds, str(theirs.fileno()), str(folder)]
            self._process = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,  # all that it ever says is why it can not begin
                env={**calm(environ), "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            failing.pop_all()
        self._pid: int | None = None
        self._status: int | None = None

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *failure: object) -> None:
        self._socket.close()
        self._process.wait()

    @property
    def is_over(self) -> bool:
        """Whether it can fork no more."""
        return self._process.poll() is not None

    def start(self, spec: Path, descriptors: Sequence[int]) -> None:
        """Ask for a process with these as standard input, output, error and lock. It begins once all is imported."""
        self._pid = self._status = None
        try:
            socket.send_fds(self._socket, [os.fsencode(spec)], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            self._status = _NEVER_BEGAN

    def status(self, timeout: float | None = 0) -> int | None:
        """The exit status of the process, minus a signal's number when one killed it; None if it has not ended and does
        not within `timeout` seconds (None: any time)."""
        while self._status is None and select.select([self._socket], [], [], timeout)[0]:
            try:
                told = [int(word) for word in self._socket.recv(256).split()]
            except ConnectionResetError:
                told = []
            if len(told) == 1:
                (self._pid,) = told
            elif told:
                self._status = os.waitstatus_to_exitcode(told[1])
            else:  # what it was forked from was killed
                self._status = _NEVER_BEGAN if self._pid is None else -signal.SIGKILL
        return self._status

    def stop(self) -> None:
        """Tell the process to end. One that has not begun never does."""
        if self.status() is None and self._pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended this moment
                os.kill(self._pid, signal.SIGTERM)
        else:
            self.abandon()

    def abandon(self) -> None:
        """Do not wait for a process that has not begun."""
        if self.status() is None and self._pid is None:
            self._process.kill()


class StepProcess:
    """A running step: its events, and ways to end it. Use as a context manager; leaving it kills the step."""

    def __init__(self, forks: Forks, spec: Path, log: Path, lock: int, redaction: Redaction) -> None:
        self._forks, self._redaction = forks, redaction
        errors = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._logging: threading.Thread | None = None
        if redaction:
            source, said = os.pipe()
            self._logging = threading.Thread(target=self._write_log, args=(source, errors))
            self._logging.start()
            errors = said
        alive, self._alive = os.pipe()  # closes when this process dies, however it dies: the keeper's signal
        self._events, events = os.pipe()
        forks.start(spec, (alive, events, errors, lock))
        for descriptor in (alive, events, errors):
            os.close(descriptor)
        self._rest = b""
        self.ended = False

    def __enter__(self) -> StepProcess:
        return self

    def __exit__(self, *failure: object) -> None:
        os.close(self._alive)  # the keeper kills all it has
        self._forks.abandon()
        self.wait()
        os.close(self._events)
        if self._logging:
            self._logging.join()  # all that could write to it have ended

    def events(self, timeout: float) -> list[dict[str, Any]]:
        """What the step said, waiting at most `timeout` seconds for it; sets `ended` after its last word."""
        gone = self._forks.status() is not None
        if not select.select([self._events], [], [], 0 if gone else timeout)[0]:
            self.ended = gone
            return []
        chunk = os.read(self._events, 1 << 16)
        if not chunk:
            self.ended = True
            return []
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [self._event(line) for line in lines]

    def _event(self, line: bytes) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(line)
        if self._redaction:  # the words of the protocol stay, whatever a secret is
            names = event["event"] != "observed"
            told = {name: self._redaction.value(each, names) for name, each in event.items() if name not in _WORDS}
            event |= told
        return _printable(event) if b"\\ud" in line else event

    def stop(self) -> None:
        """Tell the step to save what it has and end. What it started itself is ended after it."""
        self._forks.stop()

    def wait(self) -> int:
        """The step's exit status; minus a signal's number when one killed it."""
        status = self._forks.status(None)
        assert status is not None
        return status

    def _write_log(self, source: int, log: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, _PIPE)
        with open(source, "rb", buffering=0), open(log, "ab", buffering=0) as file:
            for piece in self._redaction.stream(source):
                with contextlib.suppress(OSError):  # a full disk: what is read on is lost, and the step does not stall
                    file.write(piece)


def _printable(value: Any) -> Any:
    """A plain JSON value in which what is no UTF-8, such as bytes of a file's name, is written as an escape."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, list):
        return [_printable(each) for each in value]
    if isinstance(value, dict):
        return {_printable(name): _printable(each) for name, each in value.items()}
    return value


class Grace:
    """Time left to a step that was told to end."""

    def __init__(self, seconds: float = GRACE_S) -> None:
        self._until = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return time.monotonic() > self._until
