"""The runner's side of a step's process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.pipeline.keys import HOME
from dflash.pipeline.redaction import Redaction

GRACE_S = 120.0
"""How long a step may take to save what it has when it is told to end: 14.7 GB of a large drafter take 20 s to a quick
disk."""

_PIPE = 1 << 20  # bytes: a step that says much waits seldom

_SPINS = 1000  # what libgomp itself takes when it knows of more threads than cores


def calm(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with OpenMP threads that wait asleep after a moment, unless it says how they are to wait.

    libgomp spins for milliseconds by default. While another program has a core, every parallel region then waits
    for a thread that can not run: measured on two cores beside one busy program, training took ten times as long.
    """
    if environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        return dict(environ)
    return {**environ, "GOMP_SPINCOUNT": str(_SPINS)}


class StepProcess:
    """A running step: its events, and ways to end it. Use as a context manager; leaving it kills the step."""

    def __init__(self, spec: Path, log: Path, lock: int, environ: Mapping[str, str], redaction: Redaction) -> None:
        paths = [str(HOME), *filter(None, [environ.get("PYTHONPATH")])]
        self._redaction = redaction
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dflash.pipeline.child", str(spec)],
                stdin=subprocess.PIPE,  # closes when this process dies, however it dies: the keeper's signal
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if redaction else errors,
                env={**calm(environ), "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"},
                pass_fds=(lock,),
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._events = self._process.stdout.fileno()
        self._rest = b""
        self.ended = False
        self._logging: threading.Thread | None = None
        if self._process.stderr:
            self._logging = threading.Thread(target=self._write_log, args=(self._process.stderr.fileno(), log))
            self._logging.start()

    def __enter__(self) -> StepProcess:
        return self

    def __exit__(self, *failure: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # the keeper kills all it has
        self._process.wait()
        self._process.stdout.close()
        if self._logging and self._process.stderr:
            self._logging.join()  # all that could write to it have ended
            self._process.stderr.close()

    @property
    def pid(self) -> int:
        """Of the keeper, whose descendants are the step."""
        return self._process.pid

    def events(self, timeout: float) -> list[dict[str, Any]]:
        """What the step said, waiting at most `timeout` seconds for it; sets `ended` after its last word."""
        gone = self._process.poll() is not None
        if not select.select([self._events], [], [], 0 if gone else timeout)[0]:
            self.ended = gone
            return []
        chunk = os.read(self._events, 1 << 16)
        if not chunk:
            self.ended = True
            return []
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [self._redaction.value(json.loads(line)) for line in lines]

    def stop(self) -> None:
        """Tell the step to save what it has and end. What it started itself is ended after it."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """The step's exit status; minus a signal's number when one killed it."""
        return self._process.wait()

    def _write_log(self, source: int, log: Path) -> None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, _PIPE)
        with log.open("ab", buffering=0) as file:
            for piece in self._redaction.stream(source):
                with contextlib.suppress(OSError):  # a full disk: what is read on is lost, and the step does not stall
                    file.write(piece)


class Grace:
    """Time left to a step that was told to end."""

    def __init__(self, seconds: float = GRACE_S) -> None:
        self._until = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return time.monotonic() > self._until
