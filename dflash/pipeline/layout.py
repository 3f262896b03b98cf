"""Boxes and arrows laid out in columns, each box to the right of all that lead to it (Sugiyama, Tagawa and Toda 1981).

An arrow that passes columns has a bend in each of them, which takes its place among the boxes there. Columns are
ordered by barycentre, and heights follow the neighbours' as closely as boxes that must not overlap can.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Node = str | tuple[str, str, int]
"""A box by its name, or an arrow's bend: from, to, column."""

Point = tuple[float, float]

_ACROSS = 54.0  # between columns
_DOWN = 18.0
_PORTS = 11.0
_SWEEPS = 8


@dataclass(frozen=True)
class Box:
    """Where a box is: its left upper corner and its size, in pixels."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """Where everything is. An arrow is the points that it goes through: from a box's right side, over the left and the
    right of each column that it passes, to a box's left side."""

    boxes: Mapping[str, Box]
    arrows: Mapping[tuple[str, str], tuple[Point, ...]]
    width: float
    height: float


def laid_out(sizes: Mapping[str, tuple[float, float]], edges: Sequence[tuple[str, str]]) -> Layout:
    """Boxes of these widths and heights, in an order in which each follows what leads to it; edges lead from one to
    another."""
    column = _columns_of(sizes, edges)
    chains = {edge: _chain(edge, column) for edge in edges}
    before: dict[Node, list[Node]] = {}
    after: dict[Node, list[Node]] = {}
    for chain in chains.values():
        for one, other in itertools.pairwise(chain):
            after.setdefault(one, []).append(other)
            before.setdefault(other, []).append(one)
    columns: list[list[Node]] = [[] for _ in range(max(column.values(), default=-1) + 1)]
    for name in sizes:
        columns[column[name]].append(name)
    for node in (node for chain in chains.values() for node in chain):
        if not isinstance(node, str):
            columns[node[2]].append(node)
    _order(columns, before, after)
    heights = {node: sizes[node][1] if isinstance(node, str) else 0.0 for nodes in columns for node in nodes}
    centres = _centres(columns, heights, before, after)
    return _drawn(sizes, columns, chains, centres, before, after)


def _columns_of(sizes: Mapping[str, tuple[float, float]], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """By the longest way that leads to each."""
    leading: dict[str, list[str]] = {}
    for one, other in edges:
        leading.setdefault(other, []).append(one)
    column: dict[str, int] = {}
    for name in sizes:
        column[name] = max((column[each] + 1 for each in leading.get(name, ())), default=0)
    return column


def _chain(edge: tuple[str, str], column: Mapping[str, int]) -> list[Node]:
    start, end = edge
    return [start, *((start, end, each) for each in range(column[start] + 1, column[end])), end]


def _order(
    columns: list[list[Node]], before: Mapping[Node, Sequence[Node]], after: Mapping[Node, Sequence[Node]]
) -> None:
    place = {node: float(number) for nodes in columns for number, node in enumerate(nodes)}
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for nodes in columns if forward else reversed(columns):
            near = before if forward else after
            nodes.sort(key=lambda node: _mean([place[each] for each in near.get(node, ())], place[node]))
            place.update((node, float(number)) for number, node in enumerate(nodes))


def _centres(
    columns: Sequence[Sequence[Node]],
    heights: Mapping[Node, float],
    before: Mapping[Node, Sequence[Node]],
    after: Mapping[Node, Sequence[Node]],
) -> dict[Node, float]:
    centres: dict[Node, float] = {}
    for nodes in columns:
        centres.update(zip(nodes, _apart([0.0] * len(nodes), [heights[each] for each in nodes]), strict=True))
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        near = before if forward else after
        for nodes in columns if forward else reversed(columns):
            wanted = [_mean([centres[each] for each in near.get(node, ())], centres[node]) for node in nodes]
            centres.update(zip(nodes, _apart(wanted, [heights[each] for each in nodes]), strict=True))
    return centres


def _apart(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """The centres nearest to those wanted, in their order, that keep boxes apart: isotonic regression, by pooling
    neighbours that would overlap."""
    offset = 0.0
    offsets = []
    for number, height in enumerate(heights):
        offset += (height + heights[number - 1]) / 2 + _DOWN if number else 0.0
        offsets.append(offset)
    pools: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        pools.append((want - offset, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (mean, count), (last, more) = pools[-2:]
            pools[-2:] = [((mean * count + last * more) / (count + more), count + more)]
    level = [mean for mean, count in pools for _ in range(count)]
    return [each + offset for each, offset in zip(level, offsets, strict=True)]


def _drawn(
    sizes: Mapping[str, tuple[float, float]],
    columns: Sequence[Sequence[Node]],
    chains: Mapping[tuple[str, str], Sequence[Node]],
    centres: Mapping[Node, float],
    before: Mapping[Node, Sequence[Node]],
    after: Mapping[Node, Sequence[Node]],
) -> Layout:
    top = min((centres[name] - size[1] / 2 for name, size in sizes.items()), default=0.0)
    top = min([top, *(centre for node, centre in centres.items() if not isinstance(node, str))])
    boxes: dict[str, Box] = {}
    sides: list[tuple[float, float]] = []
    x = 0.0
    for nodes in columns:
        widest = max(sizes[node][0] for node in nodes if isinstance(node, str))
        sides.append((x, x + widest))
        for node in nodes:
            if isinstance(node, str):
                boxes[node] = Box(x, centres[node] - sizes[node][1] / 2 - top, widest, sizes[node][1])
        x += widest + _ACROSS
    arrows = {}
    for edge, chain in chains.items():
        start, end = boxes[edge[0]], boxes[edge[1]]
        points = [(start.x + start.width, _port(chain[1], after[chain[0]], centres, start))]
        for node in chain[1:-1]:
            assert not isinstance(node, str)
            points += [(side, centres[node] - top) for side in sides[node[2]]]
        points.append((end.x, _port(chain[-2], before[chain[-1]], centres, end)))
        arrows[edge] = tuple(points)
    bottom = max((box.y + box.height for box in boxes.values()), default=0.0)
    bottom = max([bottom, *(y for points in arrows.values() for _, y in points)])
    return Layout(boxes, arrows, max(x - _ACROSS, 0.0), bottom)


def _port(node: Node, others: Sequence[Node], centres: Mapping[Node, float], box: Box) -> float:
    """At which height an arrow from or to `node` meets a box, among those of `others`."""
    rank = sorted(others, key=lambda each: centres[each]).index(node)
    between = min(_PORTS, 0.7 * box.height / len(others))
    return box.y + box.height / 2 + (rank - (len(others) - 1) / 2) * between


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default
