"""What `./inv bench` offers can be measured."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import pipeline
from benchmarks.parts.report import report
from dflash.cli import HOME

FILES = sorted((HOME / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_room_has_its_measure(file: Path):
    names = [each.name for each in ast.parse(file.read_text()).body if isinstance(each, ast.FunctionDef)]
    assert "measure" in names


def test_the_report_of_a_logged_training_is_timed():
    found = report(rows=2000)
    assert found.keys() == {"seconds", "peak_mb", "page_mb", "log_gb", "write_us"}
    assert found["page_mb"] > 0.01


def test_the_runner_s_room_tells_of_steps_of_planning_and_of_the_report(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pipeline, "_round", lambda: {"step_ms": 1.0})
    monkeypatch.setattr(pipeline, "planning", lambda steps: steps / 1000)
    monkeypatch.setattr(pipeline, "report", lambda: {"seconds": 2.0})
    assert pipeline.measure() == {"step_ms": 1.0, "plan_1000_s": 1.0, "report_seconds": 2.0}
