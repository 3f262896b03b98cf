"""Logs of rows, gone through side by side: however long they are, no more than a row of each is held, and what of one
was done again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import takewhile
from math import inf
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


class Course:
    """Rows that can be gone through again and again, and how they count: `backs` are where they step back, each the
    number of rows before it and the step that it is of; `loose` is how many rows are of no step, which count as none.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        """Go through the rows, once."""
        self._rows = rows
        self.backs: list[tuple[int, int]] = []
        self.loose = count = 0
        last: int | None = None
        for row in rows:
            step = _step(row)
            if step is None:
                self.loose += 1
                continue
            if last is not None and step <= last:
                self.backs.append((count, step))
            count, last = count + 1, step

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        """Each row that is of a step, and that step."""
        return ((step, row) for row in self._rows if (step := _step(row)) is not None)


def together(logs: Sequence[Course]) -> Iterator[list[Row | None]]:
    """The rows of the same step, of each log one or None, in their order. A row without the number of a step is left
    out: it may be of a step of one's own.

    Where all logs step back at the same rows, as for another phase, rows meet phase by phase. Else one of them went on
    with the log of an attempt before, and did again what it had not saved: its last row of a step is the step's.
    """
    is_alike = all(log.backs == logs[0].backs for log in logs)
    sides = [_by_phase(log) if is_alike else _newest(log) for log in logs]
    heads = [next(side, None) for side in sides]
    while known := [head for head in heads if head]:
        place = min(head[0] for head in known)
        here = [head if head and head[0] == place else None for head in heads]
        yield [head and head[1] for head in here]
        heads = [next(side, None) if now else head for side, now, head in zip(sides, here, heads, strict=True)]


def _by_phase(log: Course) -> Iterator[tuple[tuple[int, int], Row]]:
    """Each with how often the log stepped back before it, and its step."""
    anew, last = 0, None
    for step, row in log:
        anew += last is not None and step <= last
        last = step
        yield (anew, step), row


def _newest(log: Course) -> Iterator[tuple[tuple[int, int], Row]]:
    """The last row of each step, in the steps' order. Only rows of steps that may yet come again are held."""
    low = inf
    pieces = [(inf, low)]  # up to which row each goes, and the lowest step after it; the first is the last of these
    for end, step in reversed(log.backs):
        low = min(low, step)
        pieces.append((end, low))
    held: dict[int, Row] = {}
    waiting: list[int] = []
    for index, (step, row) in enumerate(log):
        if index == pieces[-1][0]:
            pieces.pop()
        if step not in held:
            heappush(waiting, step)
        held[step] = row
        while waiting and waiting[0] <= step and waiting[0] < pieces[-1][1]:
            first = heappop(waiting)
            yield (0, first), held.pop(first)
    for step in sorted(waiting):
        yield (0, step), held[step]


def _step(row: Row) -> int | None:
    step = row.get("step")
    return step if isinstance(step, int) else None
