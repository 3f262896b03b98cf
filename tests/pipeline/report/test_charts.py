"""Charts of any values, in few points."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.pipeline.report.charts import Point, Series, bars, chart, label, thinned, ticks


def line(values: list[float]) -> list[Point]:
    return [Point(step, step, 1, value, value, value) for step, value in enumerate(values, 1)]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_any_series_can_be_drawn_and_stays_in_its_frame(values: list):
    svg = re.findall("<svg.*</svg>", chart("any", [Series("it", line(values))], ("level", 3.0)))[0]
    ET.fromstring(svg)
    points = re.search('<polyline class="line" points="(.*?)"', svg)
    assert points
    for place in points[1].replace(",", " ").split():
        assert -0.1 <= float(place) <= 1000.1


def test_a_chart_without_points_is_none():
    assert chart("none", [Series("it", [])]) == ""
    assert bars("none", [("it", "red", [])]) == ""


def test_bars_stand_side_by_side_and_stay_in_their_frame():
    html = bars("shares", [("one", "red", [0.5, 1.2]), ("two", "blue", [0.25])])
    assert re.findall(r'height="([\d.]+)" fill="(\w+)"', html) == [
        ("500.0", "red"),
        ("250.0", "blue"),
        ("1000.0", "red"),
    ]
    assert "position 1: one 0.500, two 0.250" in html


def test_a_share_that_nothing_came_as_far_as_has_no_bar_and_is_in_no_mean():
    html = bars("shares", [("one", "red", [0.5, 0.0, None])])
    assert re.findall(r'height="([\d.]+)" fill', html) == ["500.0", "0.0"]
    assert "position 3: one -<" in html
    assert "mean 0.25<" in html
    assert "one 0.50 0.00 -" in html
    assert bars("shares", [("one", "red", [None, None])]) == ""


@given(st.floats(-1e6, 1e6), st.floats(0.001, 1e6), st.integers(3, 8))
def test_ticks_cover_the_range_and_are_few(low: float, width: float, about: int):
    found = ticks(low, low + width, about)
    slack = 1e-6 + 1e-8 * width  # less than a chart can show
    assert found[0] <= low + slack
    assert found[-1] >= low + width - slack
    assert len(found) <= about + 3


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.5"), (300, "300"), (2500, "2.5k"), (10_000_000, "10M"), (-4000, "-4k")]
)
def test_ticks_are_short(value: float, text: str):
    assert label(value) == text


def test_long_series_are_joined_and_keep_their_extremes_and_their_last_point():
    points = line([float(n % 7) for n in range(99_999)] + [100.0])
    thin = thinned(points)
    assert len(thin) <= 120
    assert thin[-1] == points[-1]
    assert sum(each.count for each in thin) == 100_000
    assert (thin[0].first, thin[0].least, thin[0].most) == (1, 0.0, 6.0)
    assert thin[0].mean == pytest.approx(3.0, abs=0.01)
