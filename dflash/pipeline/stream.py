"""What a step says to its runner: JSON lines on a descriptor."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class Events(Protocol):
    """Where a step's events go."""

    def send(self, event: str, **values: Any) -> None:
        """Tell one, with its values."""

    def note(self, message: str) -> None:
        """Say one line that a person should see."""


class Stream:
    """Progress and outcome as JSON lines on a descriptor. Threads may share it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, event: str, **values: Any) -> None:
        message = {"event": event, **values}
        try:
            text = json.dumps(message, default=_as_plain, allow_nan=False)
        except ValueError:  # NaN and infinities are no JSON
            text = json.dumps(_finite(json.loads(json.dumps(message, default=_as_plain))))
        line = text.encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]

    def update(self, done: int, total: int, metrics: Mapping[str, Any] | None = None) -> None:
        self.send("progress", done=done, total=total, metrics=dict(metrics or {}))

    def note(self, message: str) -> None:
        self.send("note", message=message)


def _as_plain(value: Any) -> Any:
    """Numbers and arrays of libraries that this file must not import; paths."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
