"""What each of two runs shows of a training that the one interrupted and the other went on with."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dflash.pipeline.events import read_jsonl
from dflash.pipeline.judging import made_by
from dflash.pipeline.keys import HOME
from dflash.pipeline.record import load_record
from dflash.pipeline.report.contents import gather, metrics_of
from dflash.pipeline.report.page import page
from dflash.pipeline.report.tracking import lines_of
from dflash.pipeline.share import Share, own_share
from dflash.pipeline.show import show_comparison
from dflash.pipeline.sidebyside import side_by_side
from tests.pipeline.lab import none_left
from tests.pipeline.trainings import tiny

STEPS, EVERY = 600, 20


def inv(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-B", "-m", "dflash", *words, "--root", str(folder), "--json"]
    known = {**os.environ, "PYTHONPATH": str(HOME)}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=known,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    told: dict[str, Any] = json.loads(out)
    return told


def killed(folder: Path, *words: str) -> str:
    """Start a run, and kill it when its training has come past a checkpoint; its id."""
    before = set((folder / "runs").iterdir()) if (folder / "runs").exists() else set()
    process, until = inv(folder, *words), time.monotonic() + 300
    while True:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        for run in set((folder / "runs").iterdir()) - before if (folder / "runs").exists() else ():
            steps = told(folder, run.name)
            if steps and logged(folder) > steps[0] + EVERY:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                assert none_left(folder)
                return run.name
        time.sleep(0.01)


def logged(folder: Path) -> int:
    """The last step of the training's log."""
    (log,) = (folder / "work" / "train").glob("*/metrics.jsonl")
    return int(read_jsonl(log)[-1]["step"])


def told(folder: Path, run: str) -> list[int]:
    """The steps of its training that a run has told of."""
    log = folder / "runs" / run / "events.jsonl"
    events = read_jsonl(log) if log.exists() else []
    return [each["done"] for each in events if (each["event"], each.get("step")) == ("progress", "train")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A root, and the records of three runs there: of one training, which two were killed in, and the third ended."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "tiny.yaml").write_text(tiny(STEPS, EVERY, is_whole=False))
    words = [f"{number} and {number} is {2 * number}, which is even, as any sum of two equals" for number in range(64)]
    talk = [[{"role": "user", "content": "And?"}, {"role": "assistant", "content": text}] for text in words]
    (folder / "talk.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in talk))
    first = killed(folder, "train", "--pipeline", "tiny.yaml")
    second = killed(folder, "resume")
    third = ended(inv(folder, "resume"))["id"]
    return folder, [load_record(folder, run) for run in (first, second, third)]


def shares(folder: Path, records: list[dict[str, Any]]) -> list[Share]:
    logs = [metrics_of(folder, record, step_of(record)) for record in records]
    return [own_share(folder, record, step_of(record), log) for record, log in zip(records, logs, strict=True)]


def step_of(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(step for step in record["steps"] if step["kind"] == "train")
    return found


def resumed_at(folder: Path, record: dict[str, Any]) -> int:
    """The checkpoint that a run went on from, as the trainer says."""
    notes = [
        each["message"] for each in read_jsonl(folder / "runs" / record["id"] / "events.jsonl") if "message" in each
    ]
    (found,) = [match[1] for note in notes if (match := re.match(rf"train: resumed at step (\d+) of {STEPS}", note))]
    return int(found)


def test_a_run_s_share_ends_where_the_next_went_on(runs: tuple[Path, list[dict[str, Any]]]):
    folder, records = runs
    first, second, third = (record["id"] for record in records)
    one, other = (resumed_at(folder, record) for record in records[1:])
    assert 0 < one < other < STEPS
    assert shares(folder, records) == [
        Share(0, None, one, second),
        Share(one, first, other, third),
        Share(other, second, None, None),
    ]


def test_a_report_and_a_comparison_show_no_rows_of_a_later_run(runs: tuple[Path, list[dict[str, Any]]]):
    folder, records = runs
    one, other = (resumed_at(folder, record) for record in records[1:])
    pages = [page(gather(folder, record)) for record in records]
    leads = [re.findall(r"<p class=.lead.>((?:Step|The log).*?)</p>", html) for html in pages]
    first, second, third = (record["id"] for record in records)
    assert leads == [
        [f"The log after step {one} is of run {second}, which went on from there, and is in its report."],
        [
            f"Steps 1 to {one} are of run {first}, with which this run went on. The log after step {other} is of run "
            f"{third}, which went on from there, and is in its report."
        ],
        [f"Steps 1 to {other} are of run {second}, with which this run went on."],
    ]
    lasts = [one, other, STEPS]
    assert [gather(folder, each).trainings[0].samples.last["step"] for each in records] == lasts
    assert [len(list(made_by(folder, each).rows["train"])) for each in records] == lasts
    for record, last in zip(records, lasts, strict=True):
        steps = [each["step"] for each in lines_of(folder, record, folder) if "train/loss" in each.get("metrics", ())]
        assert steps == list(range(1, last + 1))

    alone = json.loads(json.dumps(records[2] | {"id": "20991231T000000-tiny"}))
    step_of(alone)["folder"] = "work/train/other"
    (folder / "work" / "train" / "other").mkdir(exist_ok=True)
    rows = metrics_of(folder, records[2], step_of(records[2])).read_text()
    (folder / "work" / "train" / "other" / "metrics.jsonl").write_text(rows)
    (met,) = side_by_side(folder, records[0], alone).trainings.values()
    assert met[-1].step == one
    show_comparison(side_by_side(folder, records[0], records[2]), stream := io.StringIO())
    assert "train: both have the same log" in stream.getvalue()


@pytest.mark.parametrize("status", ["pending", "blocked", "left out", "running", "failed", "interrupted"])
def test_a_run_that_came_to_no_step_shows_none_of_those_that_others_did(
    runs: tuple[Path, list[dict[str, Any]]], status: str
):
    folder, records = runs
    other = json.loads(json.dumps(records[2] | {"id": "20991231T000000-tiny"}))
    step_of(other).update(status=status, result=None)
    assert gather(folder, other).trainings == []
    assert "train" not in made_by(folder, other | {"provenance": None}).rows
    step_of(other)["status"] = "skipped"
    assert gather(folder, other).trainings[0].samples.last["step"] == STEPS


def test_a_run_whose_later_one_is_gone_shows_no_more_than_it_told_of(runs: tuple[Path, list[dict[str, Any]]]):
    folder, records = runs
    third = folder / "runs" / records[2]["id"]
    third.rename(folder / "away")
    try:
        (share,) = shares(folder, records[:1])
    finally:
        (folder / "away").rename(third)
    assert share.after == third.name
    assert share.last
    assert 1 <= share.last < 2 * EVERY
