"""How busy each worker's device was: over steps by role, and in a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from dflash.pipeline.report.charts import Point, Series, chart
from dflash.pipeline.report.parts import lead, table
from dflash.training.sampling import Bucket
from dflash.training.usage import Worker, busy_by_role, noun, peak_of, share_of

_COLOURS = ("var(--one)", "var(--two)")
_PIECES = 120
"""Of a training, in which its workers are compared: what a chart shows."""
_FEW = 16
"""Workers of which the table is open."""
IDLE = 0.2
"""A role that waits for a larger share of the time is worth a word."""

Figure = Callable[[Sequence[Bucket]], float | None]
"""What some rows of one worker come to."""


def charts(workers: Sequence[Worker]) -> list[str]:
    """A line for each role, in the band of its workers: eight or sixty-four lines would hide each other."""
    busy, memory = over_steps(workers, _percent), over_steps(workers, peak_of)
    whole = {role: round(100 * share) for role, share in busy_by_role(workers).items()}
    return [
        chart("Busy, % of the time", _drawn(busy, whole), reach=(0.0, 100.0)),
        chart("GPU memory, GB", _drawn(memory, {})),
    ]


def _drawn(lines: Mapping[str, Sequence[Point]], means: Mapping[str, float]) -> list[Series]:
    pairs = zip(_COLOURS, lines.items(), strict=False)
    return [Series(role, points, colour, mean=means.get(role)) for colour, (role, points) in pairs]


def over_steps(workers: Sequence[Worker], figure: Figure, most: int = _PIECES) -> dict[str, list[Point]]:
    """For each role a figure over steps, in at most `most` pieces: the mean of its workers, the least and the most."""
    every = [bucket for each in workers for bucket in each.samples.buckets]
    first = min((each.first for each in every), default=0)
    size = math.ceil((max((each.last for each in every), default=0) - first + 1) / most)
    found: dict[str, dict[int, list[Point]]] = {}
    for worker in workers:
        pieces: dict[int, list[Bucket]] = {}
        for bucket in worker.samples.buckets:
            pieces.setdefault(((bucket.first + bucket.last) // 2 - first) // size, []).append(bucket)
        for piece, rows in pieces.items():
            if (value := figure(rows)) is not None:
                point = Point(rows[0].first, rows[-1].last, 1, value, value, value)
                found.setdefault(worker.role, {}).setdefault(piece, []).append(point)
    return {role: [_together(points) for _, points in sorted(pieces.items())] for role, pieces in found.items()}


def _together(points: Sequence[Point]) -> Point:
    """Of several workers in the same steps."""
    means = [each.mean for each in points]
    first, last = min(each.first for each in points), max(each.last for each in points)
    return Point(first, last, len(points), fmean(means), min(means), max(means))


def _percent(rows: Iterable[Bucket]) -> float | None:
    share = share_of(rows)
    return None if share is None else 100 * share


def by_worker(workers: Sequence[Worker], advised: str = "") -> str:
    """A row for each worker, and what follows from them in a sentence."""
    if not workers:
        return ""
    on_gpus = any(each.peak_gb is not None for each in workers)
    names = ["worker", "role", "busy", *["GPU memory, peak"] * on_gpus]
    rows = [
        [
            str(each.rank),
            each.role,
            "" if each.busy is None else f"{each.busy:.0%}",
            *["" if each.peak_gb is None else f"{each.peak_gb:.1f} GB"] * on_gpus,
        ]
        for each in workers
    ]
    drawn = table(names, rows, numbers=(2, 3))
    caveat = "" if on_gpus else "On a CPU workers share the processors, and to wait for one counts as busy."
    count = f"{len(rows)} worker{'s' if len(rows) > 1 else ''}"
    told = lead(advised) + lead(caveat)
    shown = " open" if len(rows) <= _FEW else ""
    return (
        f'<div class="card wide"><details{shown}><summary>By worker <span>{count}</span></summary>{drawn}</details>'
        f"{told}</div>"
    )


def advice(workers: Sequence[Worker], target_gpus: int = 1) -> str:
    """A sentence where a role waits much; what it waits for is known where the other does not. Of targets that are
    spread over GPUs only how much: what fewer or more would do is not measured."""
    busy = busy_by_role(workers)
    waited = {role: 1 - share for role, share in busy.items() if 1 - share > IDLE}
    said = " and ".join(f"{noun(role)}s {share:.0%}" for role, share in waited.items())
    if not waited:
        return ""
    if len(waited) > 1:
        more = "; ./inv split measures what each takes" if target_gpus == 1 else ""
        return f"Both waited: {said} of the time{more}."
    ((role, share),) = waited.items()
    told = f"{noun(role).capitalize()}s waited {share:.0%} of the time"
    if noun(role) == "worker":
        return f"{told}, for sums over drafters, data or a disk."
    if target_gpus > 1:
        return f"{told}."
    if role == "drafter":
        return f"{told}: more targets would keep them busy, or fewer of them would do; ./inv split measures it."
    there = sum(each.role == role for each in workers)
    enough = max(1, math.ceil(busy[role] * there))
    would = f"{enough} of {there} would do" if enough < there else "there is work in them for more drafters"
    return f"{told}: {would}; ./inv split measures it."
