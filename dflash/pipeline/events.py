"""events.jsonl: what happened in a run, one JSON object a line, only ever appended to."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dflash.errors import DataError, storage_error

_PROGRESS_INTERVAL_S = 1.0
_END = 64 * 1024
"""Bytes in which there is a whole line."""


class EventLog:
    """Appends events. Progress is written at most once a second a step; the last one always is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._written: dict[str, float] = {}
        self._held: dict[str, Mapping[str, Any]] = {}

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *failure: object) -> None:
        os.close(self._descriptor)

    def write(self, event: str, **values: Any) -> None:
        """Append one event, durably. Raises StorageError."""
        step = values.get("step")
        if step in self._held:
            self._append(self._held.pop(step))
        self._append({"time": round(time.time(), 3), "event": event, **values})
        try:
            os.fsync(self._descriptor)
        except OSError as failure:
            raise storage_error(failure, self._path) from failure

    def progress(self, step: str, **values: Any) -> None:
        """Append a step's progress, or hold it back until it is due. Raises StorageError."""
        now = time.monotonic()
        line = {"time": round(time.time(), 3), "event": "progress", "step": step, **values}
        if now - self._written.get(step, -_PROGRESS_INTERVAL_S) < _PROGRESS_INTERVAL_S:
            self._held[step] = line
            return
        self._written[step] = now
        self._held.pop(step, None)
        self._append(line)

    def _append(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line, ensure_ascii=False).encode() + b"\n"
        try:
            written = os.write(self._descriptor, data)
            if written != len(data):  # take it back, else the next line is of no use either
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as failure:
            raise storage_error(failure, self._path) from failure


def last_heard(path: Path) -> float | None:
    """When the last event was written, in unix time; None where none is there. Only the file's end is read. Raises
    StorageError."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _END))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return None
    except OSError as failure:
        raise storage_error(failure, path) from failure
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a torn line
            return float(json.loads(line)["time"])
    return None


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file. Raises as `each_jsonl`."""
    return list(each_jsonl(path))


def each_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file, one after the other. A torn last line (its writer was killed) is left out.

    Raises DataError naming any other line that is not a JSON object, or StorageError.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line == b"\n":
                    continue
                try:
                    value = json.loads(line)
                except ValueError:
                    if not line.endswith(b"\n"):
                        break
                    raise DataError("this line is not JSON", where=f"{path}:{number}") from None
                if not isinstance(value, dict):
                    raise DataError("this line is not a JSON object", where=f"{path}:{number}")
                yield value
    except OSError as failure:
        raise storage_error(failure, path) from failure
