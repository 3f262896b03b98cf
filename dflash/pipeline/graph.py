"""A plan as a picture: what leads to what, and what each step will do, as SVG text for a light page and a dark one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape as escaped

from dflash.pipeline.layout import Box, Point, laid_out
from dflash.pipeline.machines import gpus_in_words
from dflash.pipeline.matrix import as_text, declared_name
from dflash.pipeline.plan import Plan, PlannedStep
from dflash.pipeline.policy import LEFT_OUT

Group = Sequence[PlannedStep]
"""What a declared step became: itself, or one for each combination of a matrix."""

_CLASSES = {"run": "run", "resume": "resume", "skip": "skip", LEFT_OUT: "out"}
_STYLE = """
  svg { --page: #ffffff; --card: #f6f8fa; --edge: #c4ccd4; --ink: #1f2328; --soft: #57606a;
    --run: #1f5fbf; --resume: #8a5a00; --skip: #1a7f37; --out: #6e7781; }
  @media (prefers-color-scheme: dark) { svg { --page: #0d1117; --card: #161b22; --edge: #3d444d; --ink: #f0f6fc;
    --soft: #9198a1; --run: #6cb0ff; --resume: #e3b341; --skip: #56d364; --out: #8b949e; } }
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink); }
  .name { font-weight: 600; } .title { font-size: 16px; font-weight: 600; } .soft { fill: var(--soft); }
  .row { font: 11.5px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; } .end { text-anchor: end; }
  .box { fill: var(--card); stroke: var(--edge); } .apart { fill: none; stroke: var(--edge); stroke-dasharray: 5 4; }
  .arrow { fill: none; stroke: var(--soft); stroke-width: 1.4; marker-end: url(#head); }
  .order { stroke-dasharray: 4 4; }
  text.run { fill: var(--run); } text.resume { fill: var(--resume); } text.skip { fill: var(--skip); }
  text.out { fill: var(--out); }
  rect.run { fill: var(--run); } rect.resume { fill: var(--resume); } rect.skip { fill: var(--skip); }
  rect.out { fill: var(--out); }
"""
_MARGIN, _GAP, _HEADER = 20.0, 18.0, 34.0
_PADDING, _LINE, _ROW = 12.0, 18.0, 16.0
_MOST_ROWS = 6
_LONGEST = 40  # characters
_NOT_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def drawing(plan: Plan) -> str:
    """The picture. Steps of one matrix share a box; an arrow is dashed where nothing but the order is needed; what is
    in `finally` stands apart, below."""
    groups: dict[str, list[PlannedStep]] = {}
    for each in plan.steps:
        groups.setdefault(declared_name(each.step.name), []).append(each)
    ordinary = {name: group for name, group in groups.items() if not group[0].step.is_last}
    edges = {(declared_name(need), name): need for name, group in ordinary.items() for need in group[0].step.needs}
    layout = laid_out({name: _size(name, group) for name, group in ordinary.items()}, list(edges))
    parts = [f'<text class="title" x="0" y="16">{escape(plan.pipeline.name)}</text>']
    for (one, other), points in layout.arrows.items():
        takes = one in map(declared_name, ordinary[other][0].step.takes.values())
        parts.append(_arrow(points, "arrow" if takes else "arrow order"))
    for name, group in ordinary.items():
        parts += _box(name, group, layout.boxes[name])
    width, height = layout.width, layout.height
    last = {name: group for name, group in groups.items() if group[0].step.is_last}
    if last:
        more, (wide, high) = _last(last, height + 2 * _GAP)
        parts += more
        width, height = max(width, wide), height + 2 * _GAP + high
    return _svg(parts, max(width, _wide(plan.pipeline.name, 9.5)), height + _HEADER, plan)


def _size(name: str, group: Group) -> tuple[float, float]:
    """Width and height of a box, in pixels; letters are taken to be as wide as most fonts have them."""
    head = _wide(_short(name), 7.8) + _wide(_status(group), 7.2) + 2 * _PADDING
    rows = _rows(group)
    wide = max([head, _wide(_below(group), 6.8), *(_wide(text, 7.2) + _wide(word, 7.2) + 16 for text, word in rows)])
    lines = 2 if _below(group) else 1
    return wide + 2 * _PADDING, 2 * _PADDING + lines * _LINE - 4 + len(rows) * _ROW


def _wide(text: str, letter: float) -> float:
    return len(text) * letter


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _status(group: Group) -> str:
    """What all of a group will do, in a word; none where they differ."""
    found = {each.status for each in group}
    return found.pop() if len(found) == 1 else ""


def _below(group: Group) -> str:
    """The line below a box's name: the kind, unless the name says it, how many there are, and what they need."""
    step = group[0].step
    kind = step.kind.name if step.kind.name != declared_name(step.name) else ""
    words = [
        f"{len(group)} ×" if step.matrix else "",
        kind,
        f"needs {gpus_in_words(gpus)}" if (gpus := max(each.gpus for each in group)) else "",
    ]
    return " ".join(filter(None, words))


def _rows(group: Group) -> list[tuple[str, str]]:
    """The combinations of a matrix with what each will do, at most a few of them; of any other step the condition."""
    step = group[0].step
    if not step.matrix:
        return [(f"if {_short(step.when)}", "")] if step.when else []
    rows = [(_short(_combination(each)), each.status) for each in group]
    if len(rows) <= _MOST_ROWS:
        return rows
    rest = [status for _, status in rows[_MOST_ROWS - 1 :]]
    counts = ", ".join(f"{rest.count(status)} {status}" for status in dict.fromkeys(rest))
    return [*rows[: _MOST_ROWS - 1], (f"and {len(rest)} more: {counts}", "")]


def _combination(each: PlannedStep) -> str:
    return ", ".join(f"{name}={as_text(value)}" for name, value in each.step.matrix.items())


def _box(name: str, group: Group, box: Box) -> Iterator[str]:
    status = _status(group)
    x, y, right = box.x + _PADDING, box.y + _HEADER + _PADDING + 10, box.x + box.width - _PADDING
    why = "; ".join(f"{each.step.name}: {each.status}, {', '.join(each.why)}" for each in group[:_MOST_ROWS])
    yield f"<g><title>{escape(why)}</title>"
    yield _rect(box.x, box.y + _HEADER, box.width, box.height, "box", 7)
    if status:
        yield _rect(box.x, box.y + _HEADER, 4, box.height, _CLASSES.get(status, "out"), 2)
    yield _text(x, y, _short(name), "name")
    yield _text(right, y, status, f"end {_CLASSES.get(status, '')}")
    below = _below(group)
    yield _text(x, y + _LINE, below, "soft")
    for number, (text, word) in enumerate(_rows(group)):
        at = y + (2 if below else 1) * _LINE + number * _ROW
        yield _text(x, at, text, "row")
        yield _text(right, at, word, f"row end {_CLASSES.get(word, '')}")
    yield "</g>"


def _last(groups: Mapping[str, Group], top: float) -> tuple[list[str], tuple[float, float]]:
    """The steps of `finally` in a frame, one after the other; and the frame's width and height."""
    parts: list[str] = []
    x, high = _PADDING, 0.0
    for name, group in groups.items():
        width, height = _size(name, group)
        parts += _box(name, group, Box(x, top + _LINE + _PADDING, width, height))
        x, high = x + width + _GAP, max(high, height)
    size = max(x - _GAP + _PADDING, 320.0), high + _LINE + 2 * _PADDING
    frame = [
        _rect(0, top + _HEADER, *size, "apart", 9),
        _text(_PADDING, top + _HEADER + _LINE, "finally, however the others end", "soft"),
    ]
    return [*frame, *parts], size


def escape(text: str) -> str:
    """Text as XML may have it, which knows no way to write most control characters."""
    return escaped(_NOT_XML.sub("\ufffd", text))


def _arrow(points: Sequence[Point], style: str) -> str:
    """Straight across each column that it passes, and a curve between columns."""
    (x, y), *rest = points
    path = f"M{x:.1f} {y + _HEADER:.1f}"
    for number, (to_x, to_y) in enumerate(rest):
        half = (to_x - x) / 2
        if number % 2 == 0:
            path += f"C{x + half:.1f} {y + _HEADER:.1f} {to_x - half:.1f} {to_y + _HEADER:.1f} "
            path += f"{to_x - (2 if number == len(rest) - 1 else 0):.1f} {to_y + _HEADER:.1f}"
        else:
            path += f"H{to_x:.1f}"
        x, y = to_x, to_y
    return f'<path class="{style}" d="{path}"/>'


def _rect(x: float, y: float, width: float, height: float, style: str, radius: float) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{style}" {place} rx="{radius:g}"/>'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style.strip()}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>' if text else ""


def _svg(parts: Sequence[str], width: float, height: float, plan: Plan) -> str:
    size = f"{-_MARGIN:g} {-_MARGIN:g} {width + 2 * _MARGIN:.0f} {height + 2 * _MARGIN:.0f}"
    told = ". ".join(f"{each.step.name}: {each.status}" for each in plan.steps)
    page = f'<rect x="{-_MARGIN:g}" y="{-_MARGIN:g}" width="100%" height="100%" fill="var(--page)"/>'
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" width="{width + 2 * _MARGIN:.0f}" role="img">',
            f"<title>{escape(plan.pipeline.name)}</title>",
            f"<desc>{escape(told)}</desc>",
            f"<style>{_STYLE}</style>",
            f'<defs>{head}<path d="M0 0 L8 4 L0 8 z" fill="var(--soft)"/></marker></defs>',
            page,
            *filter(None, parts),
            "</svg>\n",
        ]
    )
