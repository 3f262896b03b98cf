"""Logs of rows, gone through side by side: however long they are, no more than a row of each is held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from dflash.pipeline.events import each_jsonl

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Log:
    """The rows of a file of JSON lines, read anew each time that they are gone through; of one that others have written
    on, up to the step `until`.

    Going through it raises DataError for a damaged line, or StorageError.
    """

    path: Path
    until: int | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rows = each_jsonl(self.path)
        until = self.until
        return rows if until is None else takewhile(lambda row: row.get("step", 0) <= until, rows)


class Counted:
    """Rows, and how many of them were gone through."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows, self.count = rows, 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._rows:
            self.count += 1
            yield row


def together(logs: Sequence[Iterable[Row]]) -> Iterator[list[Row | None]]:
    """The rows of the same step, of each log one or None, in their order. A row without the number of a step is left
    out: it may be of a step of one's own.

    Such a step may also count anew, as for another phase, or go on with the log of an attempt before: rows are of the
    same step only if both logs began anew as often before them.
    """
    sides = [_placed(log) for log in logs]
    heads = [next(side, None) for side in sides]
    while known := [head for head in heads if head]:
        place = min(head[0] for head in known)
        here = [head if head and head[0] == place else None for head in heads]
        yield [head and head[1] for head in here]
        heads = [next(side, None) if now else head for side, now, head in zip(sides, here, heads, strict=True)]


def _placed(rows: Iterable[Row]) -> Iterator[tuple[tuple[int, int], Row]]:
    """Each with how often the log began anew before it, and its step."""
    anew, last = 0, None
    for row in rows:
        step = row.get("step")
        if not isinstance(step, int):
            continue
        if last is not None and step <= last:
            anew += 1
        last = step
        yield (anew, step), row
