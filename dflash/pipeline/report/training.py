"""What a training's log says: its curves, and what each role did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dflash.pipeline.report import busy
from dflash.pipeline.report.charts import Point, Series, bars, chart, grouped
from dflash.pipeline.report.contents import Training, counterpart
from dflash.pipeline.report.parts import table
from dflash.training.sampling import Bucket, flat
from dflash.training.usage import Worker, noun

_ONE, _TWO = "var(--one)", "var(--two)"
_FEW = 40
"""Points of lines that are many, and would hide each other."""


def curves(training: Training, record: Mapping[str, Any]) -> str:
    """A chart for each figure that the log has."""
    buckets, last = training.samples.buckets, training.samples.last
    held_out = training.measured.get("heldout")
    held_out = held_out if isinstance(held_out, Mapping) else {}
    ends = {**dict(flat(held_out, "heldout.")), **dict(flat(last))}
    length = counterpart(record, training.step, "evaluate").get("acceptance_length")
    level = ("decoded", float(length)) if length is not None else None
    both = [("training", "", _ONE, False), ("held out", "heldout.", _TWO, True)]

    def drawn(title: str, name: str, level: tuple[str, float] | None = None) -> str:
        lines = [line(word, within + name, colour, dots) for word, within, colour, dots in both]
        return chart(title, lines, level)

    def line(word: str, name: str, colour: str = _ONE, dots: bool = False) -> Series:
        return Series(word, points(buckets, name), colour, dots, ends.get(name))

    charts = [
        drawn("Loss", "loss"),
        drawn("Acceptance length, simulated", "accept_len", level),
        chart("Accuracy by position, over steps", _by_position(buckets, ends)),
        bars(
            "Accuracy by position, last",
            [("training", _ONE, _shares(last.get("accuracy"))), ("held out", _TWO, _shares(held_out.get("accuracy")))],
        ),
        chart("Tokens a second", [line("all workers", "tokens_per_s")]),
        chart("Learning rate", [line("rate", "lr")]),
        chart("Gradient norm", [line("norm", "grad_norm")]),
        *busy.charts(training.workers),
        _roles(training),
        busy.by_worker(training.workers, busy.advice(_there(training), training.target_gpus)),
    ]
    return f'<div class="grid">{"".join(charts)}</div>'


def points(buckets: Iterable[Bucket], name: str) -> list[Point]:
    """The points of one figure."""
    return [
        Point(each.first, each.last, spread.count, spread.mean, spread.least, spread.most)
        for each in buckets
        if (spread := each.figures.get(name))
    ]


def _there(training: Training) -> list[Worker]:
    """Its workers but those of an earlier topology, that are no more or have changed their role."""
    return [each for each in training.workers if each.rank in training.roles.get(each.role, ())]


def _roles(training: Training) -> str:
    """A column for each role, as there are two at most, which fit a phone: what each of its workers got through, how
    busy they were, and what memory they took."""
    warm = (training.step.get("result") or {}).get("warm_s", {})
    speed = training.samples.last.get("tokens_per_s")
    names, columns = [], []
    for role, ranks in training.roles.items():
        mine = [each for each in _there(training) if each.role == role]
        peaks = [each.peak_gb for each in mine if each.peak_gb is not None]
        shares = [100 * each.busy for each in mine if each.busy is not None]
        seconds = [value for name, value in warm.items() if name.split()[0] == role.split()[-1]]
        spread = training.target_gpus > 1 and role == "target"
        number = len(ranks) // training.target_gpus if spread else len(ranks)
        over = f" over {len(ranks)} GPUs" if spread else ""
        names.append(f"{number} {noun(role)}{'s' if number > 1 else ''}{over}")
        columns.append(
            [
                f"{speed / number:,.0f}" if speed else "",
                _range(shares, 0) if shares else "",
                _range(peaks, 0 if max(peaks) >= 100 else 1) if peaks else "",
                f"{sum(seconds):.1f}" if seconds else "",
            ]
        )
    figures = ("tokens/s each", "busy,\u00a0%", "GPU memory,\u00a0GB", "warm-up,\u00a0s")
    rows = [[figure, *values] for figure, *values in zip(figures, *columns, strict=True) if any(values)]
    if not rows:
        return ""
    drawn = table(["workers", *names], rows, numbers=range(1, len(names) + 1))
    return f'<div class="card wide"><h3>By role</h3>{drawn}</div>'


def _by_position(buckets: Sequence[Bucket], ends: Mapping[str, float]) -> list[Series]:
    """A line for each position, from one colour to the other; without bands, which would hide each other."""
    names = sorted({name for each in buckets for name in each.figures if name.startswith("accuracy.")}, key=_place)
    return [
        Series(
            f"{_place(name) + 1}",
            [replace(each, least=each.mean, most=each.mean) for each in grouped(points(buckets, name), _FEW)],
            f"color-mix(in oklab, var(--two) {100 * index // max(1, len(names) - 1)}%, var(--one))",
            end=ends.get(name),
        )
        for index, name in enumerate(names)
    ]


def _range(values: Sequence[float], digits: int) -> str:
    least, most = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return least if least == most else f"{least} to {most}"


def _place(name: str) -> int:
    return int(name.rpartition(".")[2])


def _shares(values: Any) -> list[float]:
    whole = isinstance(values, list) and all(isinstance(each, int | float) and each == each for each in values)
    return values if whole else []
