"""Two runs side by side: their figures, their trainings at equal steps, and what they were made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash.pipeline.comparing import Difference, compare
from dflash.pipeline.figures import Pair, paired
from dflash.pipeline.report.contents import metrics_of
from dflash.pipeline.rows import Log
from dflash.pipeline.share import own_share
from dflash.pipeline.verdict import files_made
from dflash.training.sampling import flat, load_samples, row_of

_MOST_STEPS = 10
_METRICS = ("loss", "heldout.loss", "accept_len", "heldout.accept_len", "tokens_per_s")


@dataclass(frozen=True)
class Met:
    """A step that two trainings logged, and the figures that both did: by name, a's value and b's."""

    step: int
    figures: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class OtherFile:
    """A file by step and path, of which a hash in the runs a and b is another; None in a run that did not make it."""

    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class Comparison:
    """Of two runs, by their ids `a` and `b`: the figures of both, their trainings at equal steps, the differences
    between what they were made from, the worst first, the trainings that have one log: one run went on with the
    other's, or found it made; and the files that a step which made some in both made otherwise."""

    a: str
    b: str
    figures: Sequence[Pair]
    trainings: Mapping[str, Sequence[Met]]
    differences: Sequence[Difference]
    shared: Sequence[str] = ()
    files: Sequence[OtherFile] = ()

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def side_by_side(root: Path, a: Mapping[str, Any], b: Mapping[str, Any]) -> Comparison:
    """Compare two records of a root. Raises StorageError."""
    others = {each["name"]: each for each in b["steps"] if each["kind"] == "train"}
    logs = {
        step["name"]: (_log(root, a, step), _log(root, b, others[step["name"]]))
        for step in a["steps"]
        if step["kind"] == "train" and step["name"] in others
    }
    shared = [name for name, (one, other) in logs.items() if one.path == other.path and one.path.exists()]
    trainings = {name: met for name, pair in logs.items() if name not in shared and (met := at_equal_steps(*pair))}
    return Comparison(a["id"], b["id"], paired(a, b), trainings, compare(a, b), shared, other_files(a, b))


def other_files(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[OtherFile]:
    """The files that two records tell apart, of the steps that made some in both."""
    one, other = files_made(a), files_made(b)
    steps = [(record.get("provenance") or {}).get("artifacts") or {} for record in (a, b)]
    both = tuple(f"{step}/" for step in steps[0].keys() & steps[1].keys())
    names = [name for name in sorted(one.keys() | other.keys()) if name.startswith(both)]
    return [OtherFile(name, *sides) for name in names if len(set(sides := (one.get(name), other.get(name)))) == 2]


def _log(root: Path, record: Mapping[str, Any], step: Mapping[str, Any]) -> Log:
    log = metrics_of(root, record, step)
    return Log(log, own_share(root, record, step, log).last)


def at_equal_steps(a: Log, b: Log) -> list[Met]:
    """Up to ten steps, evenly, that the logs `a` and `b` both have: their rows as they were written. They are the ends
    of the shorter one's buckets; the other, which may lack a few rows, has buckets of its own."""
    samples = [(log.path, side) for log in (a, b) if (side := load_samples(log.path, log.until))]
    if len(samples) < 2:
        return []
    shorter, longer = sorted((side for _, side in samples), key=lambda side: side.rows)
    found = []
    for step in _spread([each.last for each in shorter.buckets if each.last <= longer.last["step"]]):
        rows = [row_of(step, log, side.buckets) for log, side in samples]
        if not all(rows):
            continue
        one, other = (dict(flat(row)) for row in rows)
        found.append(Met(step, {name: (one[name], other[name]) for name in _METRICS if name in one and name in other}))
    return found


def _spread(steps: Sequence[int]) -> list[int]:
    if len(steps) <= _MOST_STEPS:
        return list(steps)
    return [steps[round(index * (len(steps) - 1) / (_MOST_STEPS - 1))] for index in range(_MOST_STEPS)]
