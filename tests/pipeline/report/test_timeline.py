"""When each step was at work."""

from __future__ import annotations

import io
import re

import pytest

from dflash.hosts.inventory import find_host
from dflash.pipeline.keys import observe
from dflash.pipeline.machines import machines_of
from dflash.pipeline.plan import make_plan
from dflash.pipeline.record import new_record
from dflash.pipeline.report.parts import steps
from dflash.pipeline.report.timeline import Span, spans_of, timeline
from dflash.pipeline.show import show_record
from dflash.pipeline.store import Store
from tests.pipeline.lab import Lab
from tests.pipeline.report.sample import BEGUN, OLD, RECORD, attempt, step


def test_attempts_lie_where_they_were_and_say_how_they_ended():
    train = step("train", "train", "ok", attempt(1, 0.0, 50.0, "failed", "memory"), attempt(2, 60.0, 40.0, "ok"))
    html = timeline([train], {"train": spans_of(train, None, None)}, "gpu1")
    assert re.findall(r'<rect class="(\w+)" x="([\d.]+)%".*?width="([\d.]+)%"', html) == [
        ("failed", "0.000", "50.000"),
        ("ok", "60.000", "40.000"),
    ]
    assert "train, attempt 1: out of memory, failed: 50 s, from 0 on" in html


def test_what_still_runs_goes_on_until_now():
    tried = (attempt(1, 0.0, 10.0, "interrupted"), attempt(2, 20.0, 0.0, "interrupted"))
    running = step("train", "train", "running", *tried)
    spans = spans_of(running, None, BEGUN + 50)
    assert [(span.seconds, span.status) for span in spans] == [(10.0, "interrupted"), (30.0, "running")]
    assert "attempt 2 running<" in steps([running])
    show_record({**RECORD, "status": "running", "steps": [running]}, "runs/it", stream := io.StringIO())
    assert "attempt 2: running" in stream.getvalue()


def test_a_step_of_an_old_record_began_when_its_event_says():
    old = next(each for each in OLD["steps"] if each["name"] == "train")
    assert spans_of(old, BEGUN, None) == [Span(BEGUN, old["seconds"], "ok")]
    assert spans_of(old, None, None) == []


def test_a_step_of_a_new_run_is_shown_on_its_own_host(lab: Lab):
    lab.declare(train={"host": "gpu2"})
    (lab.root / "hosts.yaml").write_text("gpu2: {chain: 'ssh:gpu2'}\n")
    pipeline, here = lab.load(), find_host("local", lab.root / "hosts.yaml")
    hosts = machines_of(pipeline, here, lab.root / "hosts.yaml")
    record = new_record("it", make_plan(pipeline, here, observe(pipeline), Store(lab.root), hosts), lab.root, {})
    assert 'aria-label="train on gpu2: pending' in timeline(record["steps"], {}, record["host"])
    show_record(record, "runs/it", stream := io.StringIO())
    assert re.search(r"train +gpu2 +pending", stream.getvalue())


def test_a_skipped_step_has_a_row_and_no_bar():
    html = timeline(RECORD["steps"][-1:], {}, "local")
    assert "<rect" not in html
    assert '<div class="took skipped">skipped</div>' in html


@pytest.mark.parametrize("seconds", [0.0, 0.4, 59.0, 301.0, 3700.0, 86_400.0, 40 * 86_400.0])
def test_the_axis_has_few_round_times(seconds: float):
    train = step("train", "train", "ok", attempt(1, 0.0, seconds, "ok"))
    html = timeline([train], {"train": spans_of(train, None, None)}, "local")
    marks = re.findall(r'<span style="left:[\d.]+%">(.*?)</span>', html)
    assert 1 <= len(marks) <= 7
    assert marks[0] == "0"
