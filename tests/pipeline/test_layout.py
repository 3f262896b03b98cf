"""Boxes and arrows that can be read: nothing overlaps, nothing leads back, and what is together stays together."""

from __future__ import annotations

import itertools
import random
import time

from dflash.pipeline.layout import Box, Layout, laid_out

SIZE = (100.0, 50.0)
PIPELINE = [
    *[("check", "target"), ("target", "data"), ("target", "prewarm"), ("data", "prewarm"), ("target", "train")],
    *[("data", "train"), ("prewarm", "train"), ("data", "evaluate"), ("train", "evaluate"), ("train", "export")],
]


def overlapping(one: Box, other: Box) -> bool:
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


def check(layout: Layout) -> None:
    """What must hold of any drawing."""
    for one, other in itertools.combinations(layout.boxes.values(), 2):
        assert not overlapping(one, other)
    for (start, end), points in layout.arrows.items():
        assert all(one[0] < other[0] for one, other in itertools.pairwise(points))
        assert points[0][0] == layout.boxes[start].x + layout.boxes[start].width
        assert points[-1][0] == layout.boxes[end].x
        for name, (_, y) in ((start, points[0]), (end, points[-1])):
            assert layout.boxes[name].y < y < layout.boxes[name].y + layout.boxes[name].height
        for left, right in itertools.pairwise(points[1:-1]):
            if left[1] == right[1]:  # straight across a column
                line = Box(left[0], left[1], right[0] - left[0], 0.0)
                assert not any(overlapping(line, box) for box in layout.boxes.values())
    for box in layout.boxes.values():
        assert 0 <= box.x <= box.x + box.width <= layout.width
        assert 0 <= round(box.y, 6) <= round(box.y + box.height, 6) <= round(layout.height, 6)


def test_each_box_is_to_the_right_of_all_that_lead_to_it():
    names = list(dict.fromkeys(name for edge in PIPELINE for name in edge))
    layout = laid_out(dict.fromkeys(names, SIZE), PIPELINE)
    check(layout)
    column = sorted({box.x for box in layout.boxes.values()})
    assert [column.index(layout.boxes[name].x) for name in names] == [0, 1, 2, 3, 4, 5, 5]


def test_a_chain_is_a_straight_line():
    layout = laid_out(dict.fromkeys("abcd", SIZE), list(itertools.pairwise("abcd")))
    check(layout)
    assert {box.y for box in layout.boxes.values()} == {0.0}
    assert layout.height == SIZE[1]


def test_two_chains_side_by_side_do_not_cross():
    edges = [("a", "d"), ("b", "c"), ("d", "e"), ("c", "f")]
    layout = laid_out(dict.fromkeys("abcdef", SIZE), edges)
    check(layout)
    assert {layout.boxes[a].y == layout.boxes[b].y for a, b in edges} == {True}


def test_any_pipeline_is_laid_out_without_overlaps():
    draw = random.Random(8)
    for _ in range(30):
        count = draw.randint(1, 25)
        edges = [(a, b) for a in range(count) for b in range(a + 1, count) if draw.random() < 2 / count]
        sizes = {str(number): (draw.uniform(40, 300), draw.uniform(30, 150)) for number in range(count)}
        check(laid_out(sizes, [(str(a), str(b)) for a, b in edges]))


def test_a_box_with_many_arrows_is_met_by_each():
    names = [str(number) for number in range(40)]
    layout = laid_out(
        {"a": SIZE, **dict.fromkeys(names, SIZE), "z": SIZE},
        [("a", name) for name in names] + [(name, "z") for name in names],
    )
    check(layout)


def test_nothing_is_an_empty_drawing():
    assert laid_out({}, []) == Layout({}, {}, 0.0, 0.0)


def test_a_thousand_boxes_take_seconds_not_minutes():
    names = [str(number) for number in range(1000)]
    edges = [(str(number - back), str(number)) for number in range(5, 1000) for back in (1, 3, 5)]
    began = time.process_time()
    laid_out(dict.fromkeys(names, SIZE), edges)
    assert time.process_time() - began < 3.0
