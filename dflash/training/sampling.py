"""A log of rows, down-sampled: what it says in a bounded number of buckets, whatever its length.

Each bucket stands for as many rows that follow one another. When there are too many, neighbours are joined, so that
buckets double in size: from 512 to 1,024 of them once there are as many rows. Each says where its rows end in the log,
in bytes. So the buckets of any earlier moment are still right, and what is missing is read from there on: nothing has
to be written together with a row, and a writer may be killed at any moment.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from dflash.errors import storage_error

MOST = 1024
"""Buckets; even, so that all have a neighbour."""


@dataclass
class Spread:
    """The finite values of a figure in a bucket: how many, their sum, the least and the greatest."""

    count: int
    total: float
    least: float
    most: float

    @property
    def mean(self) -> float:
        return self.total / self.count

    def join(self, other: Spread) -> None:
        """Take in the values of another."""
        self.count += other.count
        self.total += other.total
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)


@dataclass
class Bucket:
    """`rows` rows, of the steps `first` to `last`, that end at byte `end` of the log. `figures` are by name; those of a
    list have their place, from 0, as the last part of it (`accuracy.0`), those of a map its key (`heldout.loss`)."""

    first: int
    last: int
    rows: int
    end: int
    figures: dict[str, Spread] = field(default_factory=dict)

    def take(self, row: Mapping[str, Any], end: int) -> None:
        """Take in the row that comes next."""
        self.last, self.end = row["step"], end
        self.rows += 1
        for name, value in flat(row):
            spread = self.figures.get(name)
            if spread is None:
                self.figures[name] = Spread(1, value, value, value)
                continue
            spread.count += 1
            spread.total += value
            if value < spread.least:
                spread.least = value
            elif value > spread.most:
                spread.most = value

    def join(self, after: Bucket) -> None:
        """Take in the bucket that comes next."""
        self.last, self.end = after.last, after.end
        self.rows += after.rows
        for name, spread in after.figures.items():
            if name in self.figures:
                self.figures[name].join(spread)
            else:
                self.figures[name] = spread

    def as_line(self) -> str:
        """One line of JSON: a figure is [count, mean, least, most]."""
        figures = {name: [each.count, each.mean, each.least, each.most] for name, each in self.figures.items()}
        line = {"first": self.first, "last": self.last, "rows": self.rows, "end": self.end, "figures": figures}
        return json.dumps(line) + "\n"


def flat(row: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, float]]:
    """The finite numbers of a row but its step, by name, as a `Bucket` has them."""
    for name, value in row.items():
        if type(value) in _NUMBERS:
            if math.isfinite(value) and name != "step":
                yield within + name, value
        elif isinstance(value, list):
            for place, each in zip(_places(within + name, len(value)), value, strict=True):
                if type(each) in _NUMBERS and math.isfinite(each):
                    yield place, each
        elif isinstance(value, dict):
            yield from flat(value, f"{within}{name}.")


_NUMBERS = frozenset((float, int))  # and not bool, which is an int


@lru_cache
def _places(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}.{place}" for place in range(count))


class Sampler:
    """The buckets of a log that grows."""

    def __init__(self, full: Iterable[Bucket] = (), most: int = MOST) -> None:
        """`full` are its first buckets, of one size; `most` is even."""
        self.full, self._most = list(full), most
        self._size = self.full[0].rows if self.full else 1
        self._filling: Bucket | None = None

    @property
    def buckets(self) -> list[Bucket]:
        """All, the one that is not full included."""
        return [*self.full, self._filling] if self._filling else self.full

    @property
    def end(self) -> int:
        """The bytes of the log that were taken in."""
        return self.buckets[-1].end if self.buckets else 0

    def take(self, row: Mapping[str, Any], end: int) -> str:
        """Take in the row that ends at byte `end`: "", "full" if that made a full bucket, or "joined" if it made so
        many that they were joined in pairs."""
        if self._filling is None:
            self._filling = Bucket(row["step"], row["step"], 0, end)
        self._filling.take(row, end)
        if self._filling.rows < self._size:
            return ""
        self.full.append(self._filling)
        self._filling = None
        if len(self.full) < self._most:
            return "full"
        for one, next_one in zip(self.full[::2], self.full[1::2], strict=True):
            one.join(next_one)
        del self.full[1::2]
        self._size *= 2
        return "joined"


@dataclass(frozen=True)
class Samples:
    """A log as a report needs it: its last row as it is, and all rows in buckets."""

    last: Mapping[str, Any]
    buckets: Sequence[Bucket]

    @property
    def rows(self) -> int:
        """How many rows the log has."""
        return sum(each.rows for each in self.buckets)


def samples_beside(log: Path) -> Path:
    """Where the buckets of a log are kept."""
    return log.with_name(f"{log.stem}.sampled{log.suffix}")


def load_samples(log: Path, until: int | None = None) -> Samples | None:
    """The samples of a log, up to the step `until` if there is one, from the buckets that are kept beside it and the
    rows after those: of a log that has none beside it, all rows are read, one after the other. None where it has no
    row, or is not there. Raises StorageError.
    """
    kept = kept_buckets(log)
    sampler, last = Sampler(kept if until is None else [each for each in kept if each.last <= until]), None
    try:
        with log.open("rb") as file:
            for row, end in rows_from(log, sampler.end, until):
                sampler.take(row, end)
                last = row
            last = last or _row(_last_line(file, sampler.end))
    except FileNotFoundError:
        return None
    except OSError as failure:
        raise storage_error(failure, log) from failure
    return Samples(last, sampler.buckets) if last else None


def kept_buckets(log: Path) -> list[Bucket]:
    """The buckets that are kept beside a log, as far as they are whole and the log has their rows. Raises
    StorageError."""
    found: list[Bucket] = []
    try:
        with log.open("rb") as file, samples_beside(log).open("rb") as kept:
            for line in kept:
                bucket = _bucket(line)
                if bucket is None or not _follows(found, bucket) or not _ends_a_line(file, bucket.end):
                    break
                found.append(bucket)
    except FileNotFoundError:
        return []
    except OSError as failure:
        raise storage_error(failure, log) from failure
    return found


def rows_from(log: Path, start: int, until: int | None = None) -> Iterator[tuple[dict[str, Any], int]]:
    """The rows of a log after its first `start` bytes, each with the byte that it ends at, up to the step `until`, or
    one that is not whole: the last may be torn, by a writer that was killed. Raises OSError."""
    with log.open("rb") as file:
        file.seek(start)
        end = start
        for line in file:
            row = _row(line)
            if row is None or (until is not None and row["step"] > until):
                break
            end += len(line)
            yield row, end


def row_of(step: int, log: Path, buckets: Sequence[Bucket]) -> dict[str, Any]:
    """The row of a step, found by the log's buckets; an empty one if there is none. Raises StorageError."""
    index = bisect_left(buckets, step, key=lambda each: each.last)
    if index == len(buckets):
        return {}
    try:
        if buckets[index].last == step:
            with log.open("rb") as file:
                return _row(_last_line(file, buckets[index].end)) or {}
        for row, _ in rows_from(log, buckets[index - 1].end if index else 0):
            if row["step"] >= step:
                return row if row["step"] == step else {}
    except OSError as failure:
        raise storage_error(failure, log) from failure
    return {}


def last_with(name: str, log: Path, buckets: Sequence[Bucket]) -> dict[str, Any]:
    """The last row of a log that has figures of the map `name`, found by the log's buckets; an empty one if there is
    none. Raises StorageError."""
    for index in reversed(range(len(buckets))):
        if any(each.startswith(f"{name}.") for each in buckets[index].figures):
            found: dict[str, Any] = {}
            try:
                for row, end in rows_from(log, buckets[index - 1].end if index else 0):
                    if end > buckets[index].end:
                        break
                    found = row if row.get(name) else found
            except OSError as failure:
                raise storage_error(failure, log) from failure
            return found
    return {}


def _row(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _bucket(line: bytes) -> Bucket | None:
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
        spreads = {
            name: Spread(count, mean * count, least, most)
            for name, (count, mean, least, most) in value.pop("figures").items()
        }
        return Bucket(figures=spreads, **value)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _follows(found: Sequence[Bucket], bucket: Bucket) -> bool:
    if not found:
        return bucket.rows > 0 and bucket.end > 0
    return len(found) < MOST - 1 and bucket.rows == found[0].rows and bucket.end > found[-1].end


def _ends_a_line(file: Any, end: int) -> bool:
    file.seek(end - 1)
    return bool(file.read(1) == b"\n")


def _last_line(file: Any, end: int) -> bytes:
    """The line that ends at byte `end`."""
    size = 4096
    while True:
        start = max(0, end - size)
        file.seek(start)
        *before, line = bytes(file.read(end - start)).rstrip(b"\n").split(b"\n")
        if before or start == 0:
            return line + b"\n"
        size *= 2
