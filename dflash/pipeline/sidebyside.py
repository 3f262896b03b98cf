"""Two runs side by side: their figures, their trainings at equal steps, and what they were made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash.pipeline.comparing import Difference, compare
from dflash.pipeline.figures import Pair, paired
from dflash.pipeline.report.contents import metrics_of
from dflash.training.sampling import flat, load_samples, row_ending_at

_MOST_STEPS = 10
_METRICS = ("loss", "heldout.loss", "accept_len", "heldout.accept_len", "tokens_per_s")


@dataclass(frozen=True)
class Met:
    """A step that two trainings logged, and the figures that both did: by name, a's value and b's."""

    step: int
    figures: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Comparison:
    """Of two runs, by their ids `a` and `b`: the figures of both, their trainings at equal steps, and the differences
    between what they were made from, the worst first."""

    a: str
    b: str
    figures: Sequence[Pair]
    trainings: Mapping[str, Sequence[Met]]
    differences: Sequence[Difference]

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def side_by_side(root: Path, a: Mapping[str, Any], b: Mapping[str, Any]) -> Comparison:
    """Compare two records of a root. Raises StorageError."""
    others = {each["name"]: each for each in b["steps"] if each["kind"] == "train"}
    trainings = {
        step["name"]: met
        for step in a["steps"]
        if step["kind"] == "train" and step["name"] in others
        if (met := at_equal_steps(metrics_of(root, a, step), metrics_of(root, b, others[step["name"]])))
    }
    return Comparison(a["id"], b["id"], paired(a, b), trainings, compare(a, b))


def at_equal_steps(a: Path, b: Path) -> list[Met]:
    """Up to ten steps, evenly, that the logs `a` and `b` both have, the first and the last such among them: their rows
    as they were written, found by the buckets that end with them."""
    samples = load_samples(a), load_samples(b)
    ends = [{each.last: each.end for each in side.buckets} if side else {} for side in samples]
    found = []
    for step in _spread(sorted(ends[0].keys() & ends[1].keys())):
        one, other = (dict(flat(row_ending_at(log, end[step]))) for log, end in zip((a, b), ends, strict=True))
        found.append(Met(step, {name: (one[name], other[name]) for name in _METRICS if name in one and name in other}))
    return found


def _spread(steps: Sequence[int]) -> list[int]:
    if len(steps) <= _MOST_STEPS:
        return list(steps)
    return [steps[round(index * (len(steps) - 1) / (_MOST_STEPS - 1))] for index in range(_MOST_STEPS)]
