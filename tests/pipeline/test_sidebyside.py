"""Two runs side by side."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from dflash.pipeline.figures import Pair, change, figures, paired, shown
from dflash.pipeline.rows import Log
from dflash.pipeline.show import show_comparison
from dflash.pipeline.sidebyside import at_equal_steps, side_by_side
from dflash.training.metriclog import MetricLog
from tests.pipeline.report.sample import RECORD


def write(log: Path, steps: int, factor: float = 1.0, **more: float) -> Path:
    log.parent.mkdir(parents=True, exist_ok=True)
    opened = MetricLog(log, 0)
    for step in range(1, steps + 1):
        opened.write({"step": step, "loss": factor / step, **more})
    opened.close()
    return log


@pytest.mark.parametrize(("one", "other", "last"), [(1, 1, 1), (400, 400, 400), (400, 250, 250), (5000, 1500, 1500)])
def test_trainings_meet_at_steps_that_both_logged_with_their_own_rows(tmp_path: Path, one: int, other: int, last: int):
    met = at_equal_steps(Log(write(tmp_path / "a.jsonl", one)), Log(write(tmp_path / "b.jsonl", other, 2.0, lr=1.0)))
    assert len(met) == min(10, one, other)
    assert met[-1].step == last
    assert all(each.figures == {"loss": (1 / each.step, 2 / each.step)} for each in met)


def test_trainings_meet_though_one_lacks_a_few_rows(tmp_path: Path):
    one, other = write(tmp_path / "a.jsonl", 3000), tmp_path / "b.jsonl"
    log = MetricLog(other, 0)
    for step in (*range(1, 1501), *range(1504, 3001)):
        log.write({"step": step, "loss": 2 / step})
    log.close()
    met = at_equal_steps(Log(one), Log(other))
    assert len(met) >= 9
    assert all(each.figures == {"loss": (1 / each.step, 2 / each.step)} for each in met)


def test_runs_that_have_one_log_are_not_said_to_have_logged_the_same(tmp_path: Path):
    write(tmp_path / "work/train/0123456789abcdef/metrics.jsonl", 30)
    found = side_by_side(tmp_path, RECORD, {**RECORD, "id": "20261130T000000-local"})
    assert (found.trainings, found.shared) == ({}, ["train"])
    show_comparison(found, stream := io.StringIO())
    assert "train: both have the same log" in stream.getvalue()


def test_a_training_that_logged_nothing_is_met_nowhere(tmp_path: Path):
    assert at_equal_steps(Log(write(tmp_path / "a.jsonl", 3)), Log(tmp_path / "absent.jsonl")) == []


def test_figures_are_those_that_a_run_is_judged_by():
    found = {each.name: (each.label, shown(each.value, each.unit)) for each in figures(RECORD)}
    assert found["acceptance_length"] == ("acceptance length", "2.41")
    assert found["wall_s"] == ("wall time", "5:12")
    assert found["train.loss"] == ("train: loss", "1.03")
    assert found["prewarm.hit_rate"] == ("prewarm: cache hits", "100%")
    assert found["train.seconds"] == ("train: time", "3:21")
    assert "export.seconds" not in found


def test_a_figure_that_one_side_lacks_stands_alone():
    pairs = {each.name: each for each in paired({**RECORD, "acceptance_length": None}, RECORD)}
    assert (pairs["acceptance_length"].a, pairs["acceptance_length"].b) == (None, 2.41)
    assert (pairs["wall_s"].a, pairs["wall_s"].b) == (312.4, 312.4)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [(2.0, 3.0, "+50.0%"), (-2.0, -3.0, "-50.0%"), (2.0, 2.0, "same"), (0.0, 1.0, ""), (None, 1.0, "")],
)
def test_a_change_is_told_where_there_is_one(a: float | None, b: float | None, said: str):
    assert change(Pair("x", "x", "", a, b)) == said


def test_a_comparison_is_a_table_for_people_and_a_document_for_programs(tmp_path: Path):
    write(tmp_path / "work/train/0123456789abcdef/metrics.jsonl", 30)
    write(tmp_path / "runs/20261130T000000-local/metrics.jsonl", 30)
    other = {**RECORD, "id": "20261130T000000-local", "provenance": {"environment": {"torch": "2.14.0"}}}
    first = {**RECORD, "provenance": {"environment": {"torch": "2.13.0"}}}
    found = side_by_side(tmp_path, first, other)
    document = json.loads(json.dumps(found.as_json()))
    assert document["trainings"]["train"][-1] == {"step": 30, "figures": {"loss": [1 / 30, 1 / 30]}}
    assert [(each["field"], each["severity"]) for each in document["differences"]] == [
        ("environment.torch", "blocking")
    ]
    show_comparison(found, stream := io.StringIO())
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["a: 20261129T163012-local", "b: 20261130T000000-local"]
    assert any(line.split() == ["30", "0.0333333", "0.0333333"] for line in lines)
    assert any(line.startswith("environment.torch  blocking  2.13.0  2.14.0") for line in lines)


def test_files_of_a_step_that_two_runs_made_otherwise_are_named(tmp_path: Path):
    def made(run: str, **files: str) -> dict[str, Any]:
        steps = [{"name": name, "kind": "command", "status": "ok", "seconds": 1.0} for name in ("make", "more")]
        artifacts = {"make": {name.replace("_", "."): {"sha256": content} for name, content in files.items()}}
        if run == "b":
            artifacts["more"] = {"alone.txt": {"sha256": "d"}}
        return {**RECORD, "id": run, "steps": steps, "provenance": {"artifacts": artifacts}}

    found = side_by_side(tmp_path, made("a", same_txt="a", out_txt="b" * 64), made("b", same_txt="a", new_txt="c" * 64))
    assert json.loads(json.dumps(found.as_json()))["files"] == [
        {"name": "make/new.txt", "a": None, "b": "c" * 64},
        {"name": "make/out.txt", "a": "b" * 64, "b": None},
    ]
    show_comparison(found, stream := io.StringIO())
    lines = [line.split() for line in stream.getvalue().splitlines()]
    assert ["make/out.txt", "b" * 12, "none"] in lines
    many = {f"f{number:02}": str(number) for number in range(14)}
    other = {name: f"other {content}" for name, content in many.items()}
    show_comparison(side_by_side(tmp_path, made("a", **many), made("b", **other)), stream := io.StringIO())
    assert "make/f09" in stream.getvalue()
    assert "make/f10" not in stream.getvalue()
    assert "and 4 more" in stream.getvalue()
