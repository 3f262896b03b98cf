"""Charts as HTML around SVG. Only the drawing stretches with the page: text and lines keep their size on a phone.
Colours come from the page, so that light and dark share one drawing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

_MOST_POINTS = 120
_MOST_HINTS = 80
_SIDE = 1000
"""The drawing's own width and height."""


@dataclass(frozen=True)
class Point:
    """The values of a figure at the steps `first` to `last`: how many, their mean, the least and the greatest."""

    first: int
    last: int
    count: int
    mean: float
    least: float
    most: float

    @property
    def x(self) -> float:
        return (self.first + self.last) / 2


@dataclass(frozen=True)
class Series:
    """A line: its name, its points in the order of steps, a CSS colour, whether each point has a dot of its own, its
    last value where that is known: the last point may stand for many steps; and its mean, where the last value says too
    little: that is told instead."""

    name: str
    points: Sequence[Point]
    colour: str = "var(--one)"
    dots: bool = False
    end: float | None = None
    mean: float | None = None

    @property
    def last(self) -> float:
        """The last value, or the mean at the last steps."""
        return self.points[-1].mean if self.end is None else self.end


def chart(
    title: str, series: Sequence[Series], level: tuple[str, float] | None = None, reach: Sequence[float] = ()
) -> str:
    """Lines over steps, each in a band from its least to its greatest values; the legend has its last value or mean.
    `level` is a name and a value to be drawn as a dashed line; the scale has all values of `reach`, whatever the lines
    are. Nothing without points."""
    series = [replace(each, points=thinned(each.points)) for each in series if each.points]
    if not series:
        return ""
    every = [point for each in series for point in each.points]
    values = [*reach, *(value for point in every for value in (point.least, point.most))]
    values += [level[1]] if level else []
    rows = ticks(min(values), max(values), 4)
    low, high = min(rows[0], *values), max(rows[-1], *values)
    left, right = min(point.first for point in every), max(point.last for point in every)
    right = max(right, left + 1)

    def at(x: float, y: float) -> str:
        return f"{(x - left) / (right - left) * _SIDE:.1f},{(high - y) / (high - low) * _SIDE:.1f}"

    parts = [_rule((high - tick) / (high - low), "grid") for tick in rows]
    if level:
        parts.append(_rule((high - level[1]) / (high - low), "level"))
    for each in series:
        parts += _line(each, at)
    parts += _hints(series, left, right)
    columns = [tick for tick in ticks(left, right, 4) if left <= tick <= right and tick == int(tick)]
    keys = [_legend(each) for each in series]
    keys += [_key("", level[0], level[1], "dashed")] if level else []
    return _figure(
        title,
        _summary(title, series, level),
        "".join(parts),
        ups=[((high - tick) / (high - low), label(tick)) for tick in rows],
        alongs=[((tick - left) / (right - left), label(tick)) for tick in columns],
        legend=keys,
        across="step",
    )


def bars(title: str, groups: Sequence[tuple[str, str, Sequence[float | None]]], across: str = "position") -> str:
    """Bars of shares (0 to 1), numbered from 1: groups of a name, a colour and values, side by side. A share that is
    None, as nothing came that far, has no bar. Nothing without values."""
    groups = [each for each in groups if any(share is not None for share in each[2])]
    if not groups:
        return ""
    places = max(len(shares) for _, _, shares in groups)
    width = _SIDE / places
    thick = width * 0.76 / len(groups)
    parts = [_rule(1 - tick / 4, "grid") for tick in range(5)]
    for place in range(places):
        here = [(name, shares[place]) for name, _, shares in groups if place < len(shares)]
        hint = ", ".join(f"{name} {_share(share, 3)}" for name, share in here)
        parts.append(f"<g><title>{escape(f'{across} {place + 1}: {hint}')}</title>")
        parts.append(f'<rect class="hint" x="{place * width:.1f}" y="0" width="{width:.1f}" height="{_SIDE}"/>')
        for index, (_, colour, shares) in enumerate(groups):
            if place < len(shares) and (share := shares[place]) is not None:
                tall = min(max(share, 0), 1) * _SIDE
                x = place * width + width * 0.12 + index * thick
                parts.append(
                    f'<rect x="{x:.1f}" y="{_SIDE - tall:.1f}" width="{thick * 0.92:.1f}" height="{tall:.1f}" '
                    f'fill="{colour}"/>'
                )
        parts.append("</g>")
    every = math.ceil(places / 16)
    summary = "; ".join(f"{name} {' '.join(_share(share, 2) for share in shares)}" for name, _, shares in groups)
    means = [statistics.fmean(share for share in shares if share is not None) for _, _, shares in groups]
    return _figure(
        title,
        f"{title}, by {across} from 1: {summary}",
        "".join(parts),
        ups=[(1 - tick / 4, f"{tick * 25}%") for tick in range(5)],
        alongs=[((place + 0.5) / places, str(place + 1)) for place in range(0, places, every)],
        legend=[_key(colour, name, mean, note="mean ") for (name, colour, _), mean in zip(groups, means, strict=True)],
        across=across,
    )


def _share(share: float | None, digits: int) -> str:
    return "-" if share is None else f"{share:.{digits}f}"


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """At most `most` points: equal runs of neighbours joined, the last point kept as it is."""
    return list(points) if len(points) <= most else [*grouped(points[:-1], most - 1), points[-1]]


def grouped(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` points: equal runs of neighbours joined."""
    size = max(1, math.ceil(len(points) / most))
    return [_joined(points[start : start + size]) for start in range(0, len(points), size)]


def _joined(points: Sequence[Point]) -> Point:
    count = sum(each.count for each in points)
    return Point(
        points[0].first,
        points[-1].last,
        count,
        sum(each.mean * each.count for each in points) / count,
        min(each.least for each in points),
        max(each.most for each in points),
    )


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`, about that many."""
    if high <= low:
        low, high = low - (abs(low) or 1) * 0.5, high + (abs(high) or 1) * 0.5
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= rough * 0.999)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [round(index * size, 12) for index in range(first, last + 1)]


def label(value: float) -> str:
    """A tick's text: `0.5`, `300`, `2.5k`, `10M`."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def short(value: float) -> str:
    """A value's text: `0.0123`, `5.51`, `11,796`."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _line(series: Series, place: Callable[[float, float], str]) -> Iterable[str]:
    points = series.points
    if any(each.most > each.least for each in points):
        edge = [place(each.x, each.most) for each in points] + [place(each.x, each.least) for each in reversed(points)]
        yield f'<polygon class="band" points="{" ".join(edge)}" fill="{series.colour}"/>'
    way = " ".join(place(each.x, each.mean) for each in points)
    yield f'<polyline class="line" points="{way}" stroke="{series.colour}"/>'
    marked = points if series.dots else points[-1:]
    dots = "".join(f"M{place(each.x, each.mean)}h0" for each in marked)
    yield f'<path class="dot" d="{dots}" stroke="{series.colour}"/>'


def _hints(series: Sequence[Series], left: float, right: float) -> Iterable[str]:
    """What a pointer is told of the steps that it is over."""
    thin = [replace(each, points=thinned(each.points, _MOST_HINTS)) for each in series]
    leading = max(thin, key=lambda each: len(each.points))
    width = _SIDE / len(leading.points)
    for point in leading.points:
        here = [(each.name, nearest) for each in thin for nearest in each.points if _is_near(nearest, point)]
        steps = f"step {point.first:,}" if point.first == point.last else f"steps {point.first:,} to {point.last:,}"
        values = "; ".join(
            f"{name} {short(each.mean)}"
            + (f" ({short(each.least)} to {short(each.most)})" if each.most > each.least else "")
            for name, each in here
        )
        middle = (point.x - left) / (right - left) * _SIDE if len(leading.points) > 1 else width / 2
        yield (
            f'<rect class="hint" x="{middle - width / 2:.1f}" y="0" width="{width:.1f}" height="{_SIDE}">'
            f"<title>{escape(f'{steps}: {values}')}</title></rect>"
        )


def _is_near(one: Point, other: Point) -> bool:
    return one.first <= other.last and other.first <= one.last


def _summary(title: str, series: Sequence[Series], level: tuple[str, float] | None) -> str:
    told = []
    for each in series:
        least, most = min(point.least for point in each.points), max(point.most for point in each.points)
        first, last = each.points[0], each.points[-1]
        told.append(
            f"{each.name} from {short(first.mean)} at step {first.first:,} to {short(each.last)} at step {last.last:,},"
            f" between {short(least)} and {short(most)}" + ("" if each.mean is None else f", mean {short(each.mean)}")
        )
    told += [f"{level[0]} {short(level[1])}"] if level else []
    return f"{title}: {'; '.join(told)}"


def _rule(share: float, style: str) -> str:
    y = f"{share * _SIDE:.1f}"
    return f'<path class="{style}" d="M0 {y}H{_SIDE}"/>'


def _legend(series: Series) -> str:
    if series.mean is None:
        return _key(series.colour, series.name, series.last)
    return _key(series.colour, series.name, series.mean, note="mean ")


def _key(colour: str, name: str, value: float, style: str = "", note: str = "") -> str:
    paint = f' style="background:{colour}"' if colour else ""
    return f'<li><i class="{style}"{paint}></i>{escape(name)} <b>{note}{short(value)}</b></li>'


def _figure(
    title: str,
    summary: str,
    drawing: str,
    *,
    ups: Sequence[tuple[float, str]],
    alongs: Sequence[tuple[float, str]],
    legend: Sequence[str],
    across: str,
) -> str:
    """A drawing with its labels: `ups` and `alongs` by their share of the way from the top, and from the left."""
    side = "".join(f'<span style="top:{share:.2%}">{escape(text)}</span>' for share, text in ups)
    below = "".join(f'<span style="left:{share:.2%}">{escape(text)}</span>' for share, text in alongs)
    return (
        f'<figure class="card chart"><figcaption><h3>{escape(title)}</h3><ul>{"".join(legend)}</ul></figcaption>'
        f'<div class="plot"><div class="ups" aria-hidden="true">{side}</div>'
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" role="img" aria-label="{escape(summary)}">'
        f'{drawing}</svg><div class="alongs" aria-hidden="true">{below}</div>'
        f'<div class="across" aria-hidden="true">{escape(across)}</div></div></figure>'
    )
