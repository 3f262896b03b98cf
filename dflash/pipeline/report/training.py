"""What a training's log says: its curves, and what each role did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dflash.pipeline.report.charts import Point, Series, bars, chart, grouped
from dflash.pipeline.report.contents import Training, counterpart
from dflash.pipeline.report.parts import table
from dflash.training.sampling import Bucket

_ONE, _TWO = "var(--one)", "var(--two)"
_FEW = 40
"""Points of lines that are many, and would hide each other."""


def curves(training: Training, record: Mapping[str, Any]) -> str:
    """A chart for each figure that the log has."""
    buckets, last = training.samples.buckets, training.samples.last
    length = counterpart(record, training.step, "evaluate").get("acceptance_length")
    level = ("decoded", float(length)) if length is not None else None
    both = [("training", "", _ONE, False), ("held out", "heldout.", _TWO, True)]

    def drawn(title: str, name: str, level: tuple[str, float] | None = None) -> str:
        lines = [Series(word, points(buckets, within + name), colour, dots) for word, within, colour, dots in both]
        return chart(title, lines, level)

    charts = [
        drawn("Loss", "loss"),
        drawn("Acceptance length, simulated", "accept_len", level),
        chart("Accuracy by position, over steps", _by_position(buckets)),
        bars(
            "Accuracy by position, last",
            [("training", _ONE, _shares(last.get("accuracy"))), ("held out", _TWO, _held_out(buckets))],
        ),
        chart("Tokens a second", [Series("all workers", points(buckets, "tokens_per_s"))]),
        chart("Learning rate", [Series("rate", points(buckets, "lr"))]),
        chart("Gradient norm", [Series("norm", points(buckets, "grad_norm"))]),
        chart("GPU memory, GB", _by_worker(buckets, training.roles)),
        _roles(training),
    ]
    return f'<div class="grid">{"".join(charts)}</div>'


def points(buckets: Iterable[Bucket], name: str) -> list[Point]:
    """The points of one figure."""
    return [
        Point(each.first, each.last, spread.count, spread.mean, spread.least, spread.most)
        for each in buckets
        if (spread := each.figures.get(name))
    ]


def _roles(training: Training) -> str:
    """A row for each role: its workers, what each got through, and what memory they took."""
    last, warm = training.samples.last, (training.step.get("result") or {}).get("warm_s", {})
    gpu, speed = last.get("gpu_gb") or [], last.get("tokens_per_s")
    workers = sum(len(each) for each in training.roles.values())
    rows = []
    for role, ranks in training.roles.items():
        used = [gpu[rank] for rank in ranks] if len(gpu) == workers else []
        seconds = [value for name, value in warm.items() if name.split()[0] == role.split()[-1]]
        rows.append(
            [
                f"{role}s" if len(ranks) > 1 else role,
                str(len(ranks)),
                f"{speed / len(ranks):,.0f}" if speed else "",
                f"{min(used):.1f} to {max(used):.1f} GB" if used else "on the CPU" if not gpu else "",
                f"{sum(seconds):.1f} s" if seconds else "",
            ]
        )
    if not rows:
        return ""
    names = ["role", "workers", "tokens/s each", "GPU memory", "warm-up"]
    return f'<div class="card wide"><h3>By role</h3>{table(names, rows, numbers=(1, 2, 4))}</div>'


def _by_position(buckets: Sequence[Bucket]) -> list[Series]:
    """A line for each position, from one colour to the other; without bands, which would hide each other."""
    names = sorted({name for each in buckets for name in each.figures if name.startswith("accuracy.")}, key=_place)
    return [
        Series(
            f"{_place(name) + 1}",
            [replace(each, least=each.mean, most=each.mean) for each in grouped(points(buckets, name), _FEW)],
            f"color-mix(in oklab, var(--two) {100 * index // max(1, len(names) - 1)}%, var(--one))",
        )
        for index, name in enumerate(names)
    ]


def _by_worker(buckets: Sequence[Bucket], roles: Mapping[str, Sequence[int]]) -> list[Series]:
    """The most that a worker of each role has had."""
    found = []
    for colour, (role, ranks) in zip((_ONE, _TWO), roles.items(), strict=False):
        lines = [points(buckets, f"gpu_gb.{rank}") for rank in ranks]
        if lines and all(lines):
            found.append(Series(role, max(lines, key=lambda line: line[-1].most), colour))
    return found


def _place(name: str) -> int:
    return int(name.rpartition(".")[2])


def _held_out(buckets: Sequence[Bucket]) -> list[float]:
    """The accuracy on held-out rows when it was last measured."""
    found = ([v.mean for k, v in each.figures.items() if k.startswith("heldout.accuracy.")] for each in buckets[::-1])
    return next(filter(None, found), [])


def _shares(values: Any) -> list[float]:
    whole = isinstance(values, list) and all(isinstance(each, int | float) and each == each for each in values)
    return values if whole else []
