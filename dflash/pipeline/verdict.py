"""What came of doing a run again: the same numbers to the last bit, others within the machine's own noise, or others.

Pure: records and rows of metrics are data, and so is the verdict.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from dflash.pipeline.comparing import Difference
from dflash.pipeline.noise import Noise, is_within
from dflash.pipeline.provenance.artifacts import COMPARED
from dflash.pipeline.rows import Course, Row, together

Kind = Literal["bit-identical", "within noise", "diverged", "not comparable"]
Rows = Mapping[str, Iterable[Row]]
"""The rows of metrics.jsonl, by the name of the step that wrote them."""

NOTHING_MADE = "neither of the runs made a file that is compared, nor metrics"

_MEASURED = (".json", ".jsonl", ".log", ".md")
"""Files that say how long something took."""


@dataclass(frozen=True)
class Verdict:
    """`kind` is "bit-identical", "within noise", "diverged", or "not comparable" where there is nothing to compare.

    `step` is the first step of the training at which a number was another, `name` that number (or a file, where all
    numbers were the same), `old` and `new` its values. `rows` and `files` say how many were compared. `cause` is a
    sentence, and `field` the difference between the runs that it names, if one does. `noise` says what the machine's
    own replays differ by, None where there is no second one, or nothing of it to compare.
    """

    kind: Kind
    rows: int
    files: int
    step: int | None = None
    name: str | None = None
    old: Any = None
    new: Any = None
    cause: str = ""
    field: str | None = None
    noise: str | None = None

    @property
    def is_good(self) -> bool:
        """Whether the run was done again, as far as this machine can."""
        return self.kind in ("bit-identical", "within noise")

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def __str__(self) -> str:
        if self.kind == "bit-identical":
            return f"bit-identical: {self.rows} rows of metrics and {self.files} files"
        if self.kind == "not comparable":
            return f"not comparable: {self.cause}"
        at = f" at step {self.step}" if self.step is not None else ""
        if self.kind == "within noise":
            return f"within the noise of this machine; first different{at}: {self.name}"
        if self.step is None:
            return f"diverged: {self.name} is another; {self.cause}"
        return f"diverged{at}: {self.name} {self.old} -> {self.new}; {self.cause}"


@dataclass(frozen=True)
class Made:
    """What a run made, as it is compared: the rows of its steps, and its record."""

    rows: Rows
    record: Mapping[str, Any]


def judged(old: Made, new: Made, differences: Sequence[Difference], others: Sequence[Made] = ()) -> Verdict:
    """The verdict on `new`, which is `old` done again. `differences` are those between their records, the likeliest
    cause first; `others` are more replays of the same run on the machine of `new`, which tell its noise."""
    noise = Noise(len(others) + 1) if others else None
    found = _read([old, new, *others], noise)
    before, after = files_made(old.record), files_made(new.record)
    if noise:
        noise.note_files([after, *(files_made(each.record) for each in others)])
    shared = sorted(before.keys() & after.keys())
    whole = Verdict("bit-identical", rows=found.pairs, files=len(shared), noise=noise.said if noise else None)
    if not found.pairs and not shared:
        is_empty = not (before or after or old.rows or new.rows)
        why = NOTHING_MADE if is_empty else "neither metrics nor files are there of both"
        return replace(whole, kind="not comparable", cause=why)
    cause, field = _cause(differences)
    alone = list(found.unequal)
    if _came_to_its_end(old):
        alone = [*sorted(before.keys() ^ after.keys()), *alone]
    if found.first:
        step, name, row, again = found.first
        is_noise = noise is not None and noise.is_known and found.is_noise and not alone
        first = replace(whole, kind="within noise" if is_noise else "diverged", step=int(row["step"]))
        label = _label(step, name, old.rows)
        return replace(first, name=label, old=row.get(name), new=again.get(name), cause=cause, field=field)
    if others_made := [name for name in shared if before[name] != after[name]] + alone:
        return replace(whole, kind="diverged", name=others_made[0], cause=cause, field=field)
    return whole


@dataclass
class _Read:
    """What there is to say of the rows of two runs: how many both have; the first with another number, as step of the
    pipeline, number, and both rows; whether all that differ do so within the noise; which logs have rows on one side
    alone."""

    pairs: int = 0
    first: tuple[str, str, Row, Row] | None = None
    is_noise: bool = True
    unequal: list[str] = field(default_factory=list)


def _read(made: Sequence[Made], noise: Noise | None) -> _Read:
    """Go through the rows of a run, of its replay, and of more replays."""
    found, is_whole = _Read(), _came_to_its_end(made[0])
    for log in dict.fromkeys(name for each in made for name in each.rows):
        sides = [Course(each.rows.get(log, ())) for each in made]
        is_apart = is_beyond = False
        replays = [number for number, each in enumerate(made) if number and log in each.rows]
        for rows in together(sides):
            row, again, *_ = rows
            here = _noise_of(log, [rows[number] for number in replays], noise) if noise else {}
            if row is None:
                is_beyond = is_beyond or again is not None
                continue
            is_apart = is_apart or is_beyond or again is None
            if again is None:
                continue
            found.pairs += 1
            if found.first is None and (name := next(_other(row, again), None)):
                found.first = log, name, row, again
            found.is_noise = found.is_noise and noise is not None and is_within(row, again, here)
        if is_whole:
            is_loose = sides[0].backs == sides[1].backs and sides[0].loose != sides[1].loose
            is_apart = is_apart or is_beyond or is_loose
        if is_apart and all(log in each.rows for each in made[:2]):
            found.unequal.append(_rows_of(log))
    return found


def _noise_of(log: str, rows: Sequence[Row | None], noise: Noise) -> dict[str, float]:
    """What it is at the next step; `rows` are those of the replays that have that log at all."""
    if None in rows and any(rows):
        noise.note_apart(_rows_of(log))
    return noise.at(log, rows)


def _rows_of(log: str) -> str:
    return f"the set of rows of {log}"


def _came_to_its_end(made: Made) -> bool:
    """One that did not made less, which is no other result."""
    return bool(made.record.get("status", "ok") == "ok")


def _other(row: Row, again: Row) -> Iterator[str]:
    """Which numbers of two rows are not the same to the last bit; text is how they were stored, NaN included."""
    for name in COMPARED:
        if json.dumps(row.get(name), sort_keys=True) != json.dumps(again.get(name), sort_keys=True):
            yield name


def _label(step: str, name: str, rows: Rows) -> str:
    return name if len(rows) == 1 else f"{step}'s {name}"


def files_made(record: Mapping[str, Any]) -> dict[str, str]:
    """By step and path, what is compared of the files that a run made: a hash of each, of tensors one of their content;
    not what holds times, nor compiled code, which names the folder that it was compiled in."""
    kinds = {step["name"]: step["kind"] for step in record.get("steps", ())}
    artifacts = (record.get("provenance") or {}).get("artifacts") or {}
    return {
        f"{step}/{path}": each.get("tensors") or each["sha256"]
        for step, files in artifacts.items()
        if kinds.get(step) != "prewarm"
        for path, each in files.items()
        if not path.endswith(_MEASURED)
    }


def _cause(differences: Sequence[Difference]) -> tuple[str, str | None]:
    """The likeliest: what differs between the runs that is ranked first; as a sentence, and its field."""
    if not differences:
        return "nothing that is recorded differs: it is not deterministic, or was changed unseen", None
    first = differences[0]
    return f"likeliest cause: {first.field}: {first.cause}", first.field
