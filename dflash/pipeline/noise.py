"""By how much a machine's own replays of one run differ, and how that is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import inf, isnan
from typing import Any

from dflash.pipeline.provenance.artifacts import COMPARED
from dflash.pipeline.rows import Row

MARGIN = 2.0
"""A difference is noise up to this many times what two replays on the same machine differed by at that step, or before:
two samples tell little of how far a third may lie."""

_EXACT = ("step", "tokens", "lr")
"""Numbers that are decided, not computed: where they are others, it is another training."""


class Noise:
    """What `replays` replays differ by, row by row of a log: at each step the most that two of them differed by there,
    or before; and what else of them is another."""

    def __init__(self, replays: int) -> None:
        self._replays = replays
        self._most: dict[tuple[str, int, int, str], float] = {}
        self._largest: tuple[float, str, int] | None = None
        self._unmeasured: tuple[str, int] | None = None
        self._apart: str | None = None
        self._has_files = False

    @property
    def is_known(self) -> bool:
        """Whether any two had a row of the same step."""
        return self._largest is not None

    def at(self, log: str, rows: Sequence[Row | None]) -> dict[str, float]:
        """By number, what it is at the next step of a log; `rows` are those of each replay, as far as it has one."""
        here: dict[str, float] = {}
        for (a, one), (b, other) in combinations(enumerate(rows), 2):
            if one is None or other is None:
                continue
            for name, size in sizes(one, other):
                if size == inf:  # one of them broke down, which makes no difference a small one
                    self._unmeasured = self._unmeasured or (name, one["step"])
                    continue
                key = (log, a, b, name)
                most = self._most[key] = max(self._most.get(key, 0.0), size)
                here[name] = max(here.get(name, 0.0), most)
                if self._largest is None or most > self._largest[0]:
                    self._largest = (most, name, one["step"])
        return here

    def note_files(self, replays: Sequence[Mapping[str, str]]) -> None:
        """Look at the files of each replay, by name what they hold."""
        for one, other in combinations(replays, 2):
            names = sorted(one.keys() | other.keys())
            self._has_files = self._has_files or bool(one.keys() & other.keys())
            self.note_apart(next((name for name in names if one.get(name) != other.get(name)), None))

    def note_apart(self, name: str | None) -> None:
        """Keep the name of what is another in two replays, if it is the first that has no size."""
        self._apart = self._apart or name

    @property
    def said(self) -> str | None:
        """A sentence; None where nothing of two replays could be compared."""
        size, name, step = self._largest or (0.0, "", 0)
        if self._unmeasured:
            name, step = self._unmeasured
            return f"{self._replays} replays on this machine differ beyond measure ({name}, step {step})"
        if size:
            return f"{self._replays} replays on this machine differ by up to {size:.3g} ({name}, step {step})"
        if self._apart:
            return f"{self._replays} replays on this machine differ in {self._apart}: it is not deterministic"
        if self.is_known or self._has_files:
            return f"{self._replays} replays on this machine are the same to the last bit"
        return None


def is_within(row: Row, again: Row, noise: Mapping[str, float]) -> bool:
    """Whether nothing in two rows differs by more than the `noise` there."""
    return all(size <= MARGIN * noise.get(name, 0.0) for name, size in sizes(row, again))


def sizes(row: Row, again: Row) -> Iterator[tuple[str, float]]:
    """How far each number of two rows is from the other; infinitely, where one has it and the other has not."""
    for name in COMPARED:
        if name in _EXACT:
            yield name, 0.0 if row.get(name) == again.get(name) else inf
            continue
        one, other = dict(_numbers(row.get(name))), dict(_numbers(again.get(name)))
        if one.keys() != other.keys():
            yield name, inf
        else:
            yield name, max((_apart(one[place], other[place]) for place in one), default=0.0)


def _apart(a: float, b: float) -> float:
    """How far two numbers are from each other: one that is none is near no number, and the same as another such."""
    if isnan(a) or isnan(b):
        return 0.0 if isnan(a) and isnan(b) else inf
    return 0.0 if a == b else abs(a - b)


def _numbers(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Each number in a value, and where in it it is."""
    if isinstance(value, int | float):
        yield place, float(value)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _numbers(each, (*place, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _numbers(each, (*place, index))
