"""The last lines of a log that grows, as a person may see them."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

LINES = 3
_INTERVAL_S = 1.0
_MOST = 4096  # bytes
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class Tail:
    """Looks at a log once a second."""

    def __init__(self, log: Path, interval_s: float = _INTERVAL_S) -> None:
        self._log, self._interval_s = log, interval_s
        self._size = log.stat().st_size if log.exists() else 0
        self._looked = time.monotonic()

    def news(self) -> list[str]:
        """The last lines, if it is time to look and the log has grown; else none."""
        now = time.monotonic()
        if now - self._looked < self._interval_s:
            return []
        self._looked = now
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size > self._size:
                file.seek(max(0, size - _MOST))
                self._size = size
                return last_lines(file.read().decode(errors="replace"))
        return []


def last_lines(text: str, most: int = LINES) -> list[str]:
    """The last lines that say something, as a terminal would have them in the end: what a progress bar wrote over is
    gone, and so are colours."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    shown = [_CONTROLS.sub("", line).rstrip() for line in lines]
    return [line for line in shown if line][-most:]
