"""The report: one page, whole, that asks nothing of any network."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import pytest

from dflash.pipeline.comparing import Difference
from dflash.pipeline.figures import figures
from dflash.pipeline.report.contents import Contents, Training
from dflash.pipeline.report.page import page
from tests.pipeline.report.sample import OLD, RECORD, contents, matrix_record, rows, samples

VOID = {"meta", "link", "br"}


class Whole(HTMLParser):
    """Sees whether what is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open += [tag] if tag not in VOID else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def whole(html: str) -> str:
    """The page, when all of it is closed and all drawings are XML that tells what it shows."""
    reader = Whole()
    reader.feed(html)
    assert reader.open == []
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        assert ET.fromstring(svg).attrib["aria-label"]
    return html


def test_the_page_holds_figures_charts_steps_and_what_it_was_made_from():
    html = whole(page(contents()))
    for part in ("2.41", "untrained 1.02", "20/20", "4.21 GB", "5:12", "0123456789abcdef, with changes", "1.75×"):
        assert part in html
    assert "config.steps: 300 -&gt; &lt;400&gt;" in html
    titles = re.findall("<h3>(.*?)</h3>", html)
    assert titles == [
        "Loss",
        "Acceptance length, simulated",
        "Accuracy by position, over steps",
        "Accuracy by position, last",
        "Tokens a second",
        "Learning rate",
        "Gradient norm",
        "Busy, % of the time",
        "GPU memory, GB",
        "By role",
        "Accepted at each position",
        "Seconds a graph",
    ]
    assert "H200, H200" in html
    assert "OMP_NUM_THREADS" in html


def test_charts_tell_what_they_show_to_those_who_hear_the_page():
    html = page(contents())
    assert (
        "Acceptance length, simulated: training from 1.01 at step 1 to 2.2 at step 120, between 1.01 and 2.2; "
        "held out from 1.25 at step 50 to 1.25 at step 100, between 1.25 and 1.25; decoded 2.41" in html
    )
    assert "Accuracy by position, last, by position from 1: training 0.90 0.60 0.30; held out 0.80 0.70 0.60" in html


def test_an_attempt_that_failed_is_told_with_its_reason():
    html = page(contents())
    assert "attempt 1 failed after 30 s: step train: &lt;its&gt; machine was lost" in html
    assert 'aria-label="train on local, torchrun: ok in 2 attempts, 3:21"' in html
    assert 'aria-label="check on gpu1: ok, 2.1 s"' in html


def test_what_went_wrong_comes_first():
    broken = [{**RECORD["steps"][0], "status": "failed", "error": "step check: <no> room"}, *RECORD["steps"][1:]]
    html = whole(page(contents({**RECORD, "status": "failed", "steps": broken})))
    assert html.index("step check: &lt;no&gt; room") < html.index("acceptance length")
    assert '<span class="state failed">failed</span>' in html


def test_differences_from_the_run_before_are_told_with_their_cause():
    found = [Difference("environment.torch", "2.12.0", "2.13.0", "blocking", "another torch: other kernels")]
    previous = {**RECORD, "id": "20261128T100000-local", "wall_s": 156.2}
    html = whole(page(contents(previous=previous, differences=found)))
    assert re.search(
        "environment.torch</td><td class=.blocking.>blocking</td>.*2.12.0.*2.13.0.*another torch: other kernels", html
    )
    assert "20261128T100000-local, which was ok" in html
    assert re.search("wall time</td><td[^>]*>2:36</td><td[^>]*>5:12</td><td[^>]*>.100.0%", html)
    assert "made from the same" in page(contents(previous=previous))
    assert "Since the run before" not in page(contents())


def test_the_page_asks_nothing_of_a_network():
    html = page(contents())
    assert not re.search(r"https?:|<script|@import|url\(", html)
    for part in ("prefers-color-scheme: dark", "width=device-width", "@media print"):
        assert part in html


def test_of_a_matrix_each_combination_has_its_own_figures():
    record = matrix_record()
    trainings = [Training(each, samples(rows())) for each in record["steps"] if each["kind"] == "train"]
    html = whole(page(Contents(record, trainings)))
    assert re.findall("decoded <b>(.*?)</b>", html) == ["3.9", "1.2"]
    assert re.findall("<b>(.*?)</b><span>acceptance length.*?: (.*?)</span>", html) == [
        ("3.90", "evaluate@seed=1"),
        ("1.20", "evaluate@seed=2"),
    ]
    cached = re.findall("Compile cache: prewarm@seed=(.)</h2>(.*?)</section>", html)
    assert [(seed, "hits, misses in training" in section) for seed, section in cached] == [("1", False), ("2", True)]
    assert "<h2>Decoding: evaluate@seed=1</h2>" in html
    lengths = {each.name: each.value for each in figures(record) if "acceptance" in each.name}
    assert lengths == {
        "evaluate@seed=1.acceptance_length": 3.9,
        "evaluate@seed=2.acceptance_length": 1.2,
    }


def test_of_several_evaluations_of_one_training_none_is_its_own():
    evaluations = [{**RECORD["steps"][3], "name": name} for name in ("evaluate", "again")]
    record = {**RECORD, "steps": [*RECORD["steps"][:3], *evaluations]}
    assert "decoded <b>" not in page(contents(record))


def test_a_pre_warm_of_nothing_is_no_tile():
    nothing = {"graphs": 0, "hit_rate": 1.0}
    record = {**RECORD, "steps": [{**RECORD["steps"][1], "result": nothing}, *RECORD["steps"][2:]]}
    assert "hit the cache" not in page(contents(record))


@pytest.mark.parametrize("status", ["running", "failed", "interrupted", "ok"])
def test_a_run_in_any_state_has_a_page_and_so_has_an_old_record(status: str):
    for record in (RECORD, OLD):
        html = whole(page(contents({**record, "status": status}, [])))
        assert f'<span class="state {status}">{status}</span>' in html


def test_a_run_that_has_hardly_begun_has_a_page_too():
    bare = {"acceptance_length": None, "greedy_total": None, "commit": None}
    steps = [{**each, "status": "pending", "result": None, "attempts": [], "started": None} for each in RECORD["steps"]]
    html = whole(page(contents({**RECORD, **bare, "status": "running", "steps": steps}, [])))
    assert "<h3>" not in html


@pytest.mark.parametrize(
    "found",
    [
        [{"step": 1}],
        [{"step": 1, "heldout": {}}, {"step": 2, "heldout": 3}],
        [{"step": 1, "loss": float("nan"), "accuracy": []}],
        [{"step": 1, "loss": 2.0, "accuracy": [float("nan"), 1]}],
    ],
)
def test_rows_that_lack_values_do_no_harm(found: list):
    whole(page(contents(RECORD, found)))


def test_a_long_training_has_no_larger_page_than_a_short_one():
    short, long = (len(page(contents(RECORD, rows(count)))) for count in (1000, 20_000))
    assert long < 1.2 * short
