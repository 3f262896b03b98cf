"""What `./inv bench` offers can be measured."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import pipeline
from benchmarks.parts.report import report, write_log
from dflash.cli import HOME
from dflash.training.metriclog import MetricLog
from dflash.training.sampling import kept_buckets, rows_from

FILES = sorted((HOME / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_room_has_its_measure(file: Path):
    names = [each.name for each in ast.parse(file.read_text()).body if isinstance(each, ast.FunctionDef)]
    assert "measure" in names


def test_the_report_of_a_logged_training_is_timed():
    found = report(rows=2000)
    assert found.keys() == {"seconds", "peak_mb", "page_mb", "log_gb", "write_us", "write_cpu_us"}
    assert found["page_mb"] > 0.01


@pytest.mark.parametrize("timed", [10, 1500, 4000])
def test_a_log_that_is_made_quickly_is_one_that_a_training_could_have_written(timed: int, tmp_path: Path):
    quick, whole = tmp_path / "quick.jsonl", tmp_path / "whole.jsonl"
    write_log(quick, 4000, timed)
    log = MetricLog(whole, 0)
    for row, _ in rows_from(quick, 0):
        log.write(row)
    log.close()
    assert [row["step"] for row, _ in rows_from(quick, 0)] == list(range(1, 4001))
    assert quick.read_bytes() == whole.read_bytes()
    assert kept_buckets(quick) == kept_buckets(whole)


def test_the_runner_s_room_tells_of_steps_of_planning_and_of_the_report(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pipeline, "_round", lambda: {"step_ms": 1.0})
    monkeypatch.setattr(pipeline, "planning", lambda steps: steps / 1000)
    monkeypatch.setattr(pipeline, "report", lambda: {"seconds": 2.0})
    assert pipeline.measure() == {"step_ms": 1.0, "plan_1000_s": 1.0, "report_seconds": 2.0}
