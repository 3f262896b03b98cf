"""Source that is edited while a run is at work: nothing is kept that other code made than its key says."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dflash.pipeline.keys import HOME, files_of
from dflash.pipeline.record import load_record
from dflash.pipeline.request import request_of
from tests.pipeline.lab import SAMPLE_KINDS, Lab


def copied(place: Path) -> Path:
    """A copy of this project's source, which may be edited."""
    for name in ("dflash", "tests/pipeline"):
        shutil.copytree(HOME / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def test_a_step_whose_source_is_edited_while_it_runs_fails_and_goes_on_once_that_is_undone(lab: Lab, tmp_path: Path):
    project = copied(tmp_path / "project")
    source = project / "dflash" / "errors.py"
    before = source.read_text()
    process = lab.start("train.steps=5", "train.seconds=0.2", project=project)
    run = lab.await_event("progress", "train")
    source.write_text(before + "# edited\n")
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert "step train: what it reads was changed after the run was planned: sources.errors.py: " in said
    assert "undo that and go on: ./inv resume" in said
    assert not (lab.root / load_record(lab.root, run.name)["steps"][3]["folder"] / "done.json").exists()

    source.write_text(before)
    process = lab.start(verb="resume", project=project)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    assert load_record(lab.root)["steps"][3]["status"] == "ok"


def test_a_step_whose_source_was_edited_before_it_began_does_not_begin(lab: Lab):
    plan = lab.plan()
    steps = [
        replace(each, fields={**each.fields, "sources": {"errors.py": "0" * 64}}) if each.step.name == "train" else each
        for each in plan.steps
    ]
    request = request_of(plan.pipeline, (), plan.host, SAMPLE_KINDS, lab.root)
    outcome = lab._execute(replace(plan, steps=tuple(steps)), request)
    entries = {entry["name"]: entry for entry in outcome.record["steps"]}
    assert str(outcome.failure).startswith("step train: what it reads was changed after the run was planned: sources.")
    assert (entries["train"]["status"], entries["train"]["attempts"]) == ("failed", [])
    assert entries["evaluate"]["status"] == "blocked"


@pytest.mark.parametrize("pattern", ["own", "own/**"])
def test_what_python_compiles_beside_a_program_is_no_input(pattern: str, tmp_path: Path):
    for name in ("own/a.py", "own/deep/b.py", "own/__pycache__/a.pyc", "own/deep/__pycache__/b.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert files_of(pattern, tmp_path) == [tmp_path / "own" / "a.py", tmp_path / "own" / "deep" / "b.py"]
