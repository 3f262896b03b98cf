"""Charts as SVG text. Colours come from the page, so that light and dark share one drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

_WIDTH, _HEIGHT = 420, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 14, 40
_MOST_POINTS = 400


def line(points: Sequence[tuple[float, float]], name: str, across: str = "step") -> str:
    """A line through (x, y) points, with its last value written at the end."""
    points = thinned(points)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_ticks, y_ticks = ticks(min(xs), max(xs), 5), ticks(min(ys), max(ys), 4)
    x_low, x_high = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1
    y_low, y_high = min(y_ticks[0], *ys), max(y_ticks[-1], *ys)

    def place(x: float, y: float) -> tuple[float, float]:
        return _scale(x, x_low, x_high, _LEFT, _WIDTH - _RIGHT), _scale(y, y_low, y_high, _HEIGHT - _BOTTOM, _TOP)

    parts = _grid([(place(x_low, tick)[1], label(tick)) for tick in y_ticks])
    for tick in x_ticks:
        if x_low <= tick <= x_high:
            parts.append(_text(place(tick, y_low)[0], _HEIGHT - _BOTTOM + 16, label(tick), "middle"))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, across, "middle"))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    parts.append(
        f'<polyline points="{path}" fill="none" stroke="var(--line)" stroke-width="2" stroke-linejoin="round"/>'
    )
    x, y = place(*points[-1])
    parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="var(--line)"/>')
    parts.append(_text(x - 2, y - 9 if y > _TOP + 16 else y + 18, f"{ys[-1]:.3g}", "end", "value"))
    return _svg(parts, f"{name}: from {ys[0]:.3g} to {ys[-1]:.3g} over {len(points)} points")


def bars(shares: Sequence[float], name: str, across: str = "position") -> str:
    """A bar for each share (0 to 1), numbered from 1, with its value on top."""
    bottom, width = _HEIGHT - _BOTTOM, (_WIDTH - _LEFT - _RIGHT) / len(shares)
    thick = min(width - 2, 24)

    def height(share: float) -> float:
        return _scale(share, 0, 1, bottom, _TOP + 10)

    parts = _grid([(height(tick), label(tick)) for tick in (0, 0.25, 0.5, 0.75, 1)])
    every = math.ceil(len(shares) / 16)
    for index, share in enumerate(shares):
        middle = _LEFT + width * (index + 0.5)
        top = height(min(max(share, 0), 1))
        parts.append(
            f'<path d="{_bar(middle - thick / 2, top, thick, bottom)}" fill="var(--line)">'
            f"<title>{across} {index + 1}: {share:.3f}</title></path>"
        )
        if index % every == 0:
            parts.append(_text(middle, bottom + 16, str(index + 1), "middle"))
        if len(shares) <= 10:
            parts.append(_text(middle, top - 5, f"{share:.2f}".removeprefix("0"), "middle", "value"))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, across, "middle"))
    return _svg(parts, f"{name}: " + ", ".join(f"{share:.2f}" for share in shares))


def thinned(points: Sequence[tuple[float, float]], most: int = _MOST_POINTS) -> list[tuple[float, float]]:
    """At most `most` points: means of equal runs of neighbours, the last point kept as it is."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / (most - 1))
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    means = [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]
    return [*means[:-1], points[-1]]


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
    """A tick's text: `0.5`, `300`, `12k`."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


def _scale(value: float, low: float, high: float, start: float, end: float) -> float:
    return start + (value - low) / (high - low) * (end - start)


def _grid(rows: Sequence[tuple[float, str]]) -> list[str]:
    parts = []
    for number, (y, text) in enumerate(rows):
        colour = "var(--axis)" if number == 0 else "var(--grid)"
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="{colour}"/>')
        parts.append(_text(_LEFT - 6, y + 4, text, "end"))
    return parts


def _bar(x: float, top: float, thick: float, bottom: float) -> str:
    """A bar with its upper corners rounded."""
    radius = min(4, thick / 2, bottom - top)
    return (
        f"M{x:.1f} {bottom}V{top + radius:.1f}q0 {-radius:.1f} {radius:.1f} {-radius:.1f}"
        f"h{thick - 2 * radius:.1f}q{radius:.1f} 0 {radius:.1f} {radius:.1f}V{bottom}Z"
    )


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    style = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def _svg(parts: Sequence[str], what: str) -> str:
    """`what` is for those who hear the page."""
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(what)}">{"".join(parts)}</svg>'
