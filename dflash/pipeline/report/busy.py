"""How busy each worker's device was: over steps by role, and in a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from statistics import fmean

from dflash.pipeline.report.charts import Point, Series, chart
from dflash.pipeline.report.parts import table
from dflash.training.sampling import Bucket
from dflash.training.usage import Worker, peak_of, share_of, shares_by_role

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
    return [
        chart("Busy, % of the time", _drawn(busy), reach=(0.0, 100.0)),
        chart("GPU memory, GB", _drawn(memory)),
    ]


def _drawn(lines: dict[str, list[Point]]) -> list[Series]:
    return [Series(role, points, colour) for colour, (role, points) in zip(_COLOURS, lines.items(), strict=False)]


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


def by_worker(workers: Sequence[Worker]) -> str:
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
    told = "".join(f'<p class="lead">{escape(each)}</p>' for each in (advice(workers), caveat) if each)
    shown = " open" if len(rows) <= _FEW else ""
    return (
        f'<div class="card wide"><details{shown}><summary>By worker <span>{count}</span></summary>{drawn}</details>'
        f"{told}</div>"
    )


def advice(workers: Sequence[Worker]) -> str:
    """A sentence where a role waits much; what it waits for is known where the other does not."""
    shares = shares_by_role(workers)
    waited = {role: 1 - fmean(found) for role, found in shares.items() if 1 - fmean(found) > IDLE}
    said = " and ".join(f"{role}s {share:.0%}" for role, share in waited.items())
    if len(waited) != 1:
        return f"Both waited: {said} of the time; ./inv split measures what each takes." if waited else ""
    if "target" in waited:
        enough, there = max(1, math.ceil(sum(shares["target"]))), len(shares["target"])
        would = f"{enough} of {there} would do" if enough < there else "there is work in them for more drafters"
        return f"Targets waited {waited['target']:.0%} of the time: {would}; ./inv split measures it."
    if "drafter" in waited:
        would = "more targets would keep them busy, or fewer of them would do"
        return f"Drafters waited {waited['drafter']:.0%} of the time: {would}; ./inv split measures it."
    return f"Workers waited {fmean(waited.values()):.0%} of the time, for sums over drafters, data or a disk."
