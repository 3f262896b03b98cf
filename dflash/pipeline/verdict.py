"""What came of doing a run again: the same numbers to the last bit, others within the machine's own noise, or others.

Pure: records and rows of metrics are data, and so is the verdict.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isnan
from typing import Any, Literal

from dflash.pipeline.comparing import Difference
from dflash.pipeline.provenance.artifacts import COMPARED

Kind = Literal["bit-identical", "within noise", "diverged", "not comparable"]
Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""The rows of metrics.jsonl, by the name of the step that wrote them."""

MARGIN = 2.0
"""A difference is noise up to this many times what two replays on the same machine differed by at that step, or before:
two samples tell little of how far a third may lie."""

_EXACT = ("step", "tokens", "lr")
"""Numbers that are decided, not computed: where they are others, it is another training."""
_MEASURED = (".json", ".jsonl", ".log", ".md")
"""Files that say how long something took."""


@dataclass(frozen=True)
class Verdict:
    """`kind` is "bit-identical", "within noise", "diverged", or "not comparable" where there is nothing to compare.

    `step` is the first step of the training at which a number was another, `name` that number (or a file, where all
    numbers were the same), `old` and `new` its values. `rows` and `files` say how many were compared. `cause` is a
    sentence, and `field` the difference between the runs that it names, if one does. `noise` says what the machine's
    own replays differ by, None where there is no second one.
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
    pairs = list(_paired(old.rows, new.rows))
    before, after = _files(old.record), _files(new.record)
    shared = sorted(before.keys() & after.keys())
    noise = _noise([new, *others]) if others else None
    told = None if noise is None else _told(noise, len(others) + 1)
    whole = Verdict("bit-identical", rows=len(pairs), files=len(shared), noise=told)
    if not pairs and not shared:
        return replace(whole, kind="not comparable", cause="neither metrics nor files are there of both")
    cause, field = _cause(differences)
    alone = list(_only_one_has(old, new))
    for step, row, again in pairs:
        for name in _other(row, again):
            kind: Kind = "within noise" if noise and not alone and _is_noise(pairs, noise) else "diverged"
            first = replace(whole, kind=kind, step=int(row["step"]), name=_label(step, name, old.rows))
            return replace(first, old=row.get(name), new=again.get(name), cause=cause, field=field)
    if others_made := [name for name in shared if before[name] != after[name]] + alone:
        return replace(whole, kind="diverged", name=others_made[0], cause=cause, field=field)
    return whole


def _only_one_has(old: Made, new: Made) -> Iterator[str]:
    """Files and rows that one made and the other did not. A run that came to no end made less; that is no difference in
    what it computed."""
    if old.record.get("status", "ok") == "ok":
        yield from sorted(_files(old.record).keys() ^ _files(new.record).keys())
        for name in sorted(old.rows.keys() & new.rows.keys()):
            if len(old.rows[name]) != len(new.rows[name]):
                yield f"the number of rows of {name}"


def _paired(old: Rows, new: Rows) -> Iterator[tuple[str, Row, Row]]:
    """Rows of the same step of the same training. A row of a step of one's own may have no number of one."""
    for name in old:
        again = {row["step"]: row for row in new.get(name, ()) if isinstance(row.get("step"), int)}
        for row in old[name]:
            if isinstance(row.get("step"), int) and row["step"] in again:
                yield name, row, again[row["step"]]


def _other(row: Row, again: Row) -> Iterator[str]:
    """Which numbers of two rows are not the same to the last bit; text is how they were stored, NaN included."""
    for name in COMPARED:
        if json.dumps(row.get(name), sort_keys=True) != json.dumps(again.get(name), sort_keys=True):
            yield name


def _label(step: str, name: str, rows: Rows) -> str:
    return name if len(rows) == 1 else f"{step}'s {name}"


def _files(record: Mapping[str, Any]) -> dict[str, str]:
    """What is compared of the files that a run made: of tensors their content; not what holds times, nor compiled code,
    which names the folder that it was compiled in."""
    kinds = {step["name"]: step["kind"] for step in record.get("steps", ())}
    artifacts = (record.get("provenance") or {}).get("artifacts") or {}
    return {
        f"{step}/{path}": each.get("tensors") or each["sha256"]
        for step, files in artifacts.items()
        if kinds.get(step) != "prewarm"
        for path, each in files.items()
        if not path.endswith(_MEASURED)
    }


Noise = Mapping[tuple[str, Any, str], float]
"""By training, step and number: the most that two replays differed there, or before."""


def _noise(replays: Sequence[Made]) -> Noise:
    found: dict[tuple[str, Any, str], float] = {}
    for index, one in enumerate(replays):
        for other in replays[index + 1 :]:
            most: dict[tuple[str, str], float] = {}
            for step, row, again in _paired(one.rows, other.rows):
                for name, size in _sizes(row, again):
                    if size == inf:  # one of them broke down, which makes no difference a small one
                        continue
                    most[step, name] = max(most.get((step, name), 0.0), size)
                    key = (step, row["step"], name)
                    found[key] = max(found.get(key, 0.0), most[step, name])
    return found


def _sizes(row: Row, again: Row) -> Iterator[tuple[str, float]]:
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


def _is_noise(pairs: Sequence[tuple[str, Row, Row]], noise: Noise) -> bool:
    """Whether nothing differs by more than the machine's own replays do."""
    return all(
        size <= MARGIN * noise.get((step, row["step"], name), 0.0)
        for step, row, again in pairs
        for name, size in _sizes(row, again)
    )


def _told(noise: Noise, count: int) -> str:
    largest = max(noise.values(), default=0.0)
    if not largest:
        return f"{count} replays on this machine are the same to the last bit"
    _, step, name = max(noise, key=lambda key: noise[key])
    return f"{count} replays on this machine differ by up to {largest:.3g} ({name}, step {step})"


def _cause(differences: Sequence[Difference]) -> tuple[str, str | None]:
    """The likeliest: what differs between the runs that is ranked first; as a sentence, and its field."""
    if not differences:
        return "nothing that is recorded differs: it is not deterministic, or was changed unseen", None
    first = differences[0]
    return f"likeliest cause: {first.field}: {first.cause}", first.field
