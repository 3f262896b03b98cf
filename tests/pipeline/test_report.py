"""The report: one page, whole, that asks nothing of any network."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.pipeline.charts import line, thinned, ticks
from dflash.pipeline.report import page

RECORD = {
    "id": "20261129T163012-local",
    "pipeline": "local",
    "host": "local",
    "status": "ok",
    "started": "2026-11-29T16:30:12Z",
    "wall_s": 312.4,
    "peak_rss_mb": 4210.5,
    "acceptance_length": 2.41,
    "acceptance_length_untrained": 1.02,
    "greedy_identical": 20,
    "greedy_total": 20,
    "commit": "0123456789abcdef",
    "dirty": True,
    "lock_id": "ab" * 32,
    "python": "3.11.2",
    "torch": "2.13.0",
    "steps": [
        {
            "name": "train",
            "status": "ok",
            "seconds": 201.0,
            "peak_rss_mb": 4000.0,
            "why": ["config.steps: 300 -> <400>"],
            "error": None,
        }
    ],
}
ROWS = [{"step": n, "loss": 6.0 / (n + 1), "accuracy": [0.9, 0.6, 0.3], "accept_len": 1 + n / 100} for n in range(120)]


def test_the_page_holds_figures_charts_and_steps():
    html = page(RECORD, ROWS)
    for part in ("2.41", "1.02 untrained", "20/20", "4.21 GB", "5:12", "0123456789ab with changes"):
        assert part in html
    assert "config.steps: 300 -&gt; &lt;400&gt;" in html
    assert html.count("<svg") == 3
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ET.fromstring(svg)


def test_what_was_measured_on_held_out_rows_is_drawn_where_there_is_any():
    measured = [{**row, "heldout": {"loss": 3.5, "accept_len": 1.25}} if row["step"] % 50 == 0 else row for row in ROWS]
    html = page(RECORD, measured)
    assert html.count("<svg") == 5
    assert "Loss on held-out rows, by step" in html
    assert "Simulated acceptance length on held-out rows: from 1.25 to 1.25 over 3 points" in html


def test_the_page_asks_nothing_of_a_network():
    html = page(RECORD, ROWS)
    assert not re.search(r"https?:|<script|@import|url\(", html)
    assert "prefers-color-scheme: dark" in html
    assert "width=device-width" in html


def test_a_run_without_training_has_a_page_too():
    bare = {**RECORD, "acceptance_length": None, "greedy_total": None, "commit": None, "steps": []}
    assert "<svg" not in page(bare)


@pytest.mark.parametrize(
    "rows",
    [
        [{}],
        [{"step": 1, "heldout": {}}, {"heldout": 3}],
        [{"step": 1, "loss": float("nan"), "accuracy": []}],
        [{"step": 0, "loss": 2}],
    ],
)
def test_rows_that_lack_values_do_no_harm(rows: list):
    assert page(RECORD, rows).endswith("</html>\n")


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_any_series_can_be_drawn(values: list):
    ET.fromstring(line([(float(index), value) for index, value in enumerate(values)], "any"))


@given(st.floats(-1e6, 1e6), st.floats(0.001, 1e6), st.integers(3, 8))
def test_ticks_cover_the_range_and_are_few(low: float, width: float, about: int):
    found = ticks(low, low + width, about)
    slack = 1e-6 + 1e-8 * width  # less than a chart can show
    assert found[0] <= low + slack
    assert found[-1] >= low + width - slack
    assert len(found) <= about + 3


def test_long_series_are_thinned_and_keep_their_last_point():
    points = [(float(n), float(n % 7)) for n in range(100_000)]
    thin = thinned(points)
    assert len(thin) <= 400
    assert thin[-1] == points[-1]
