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
from dflash.pipeline.store import note_part
from dflash.training.checkpoints import name_of
from tests.pipeline.lab import none_left
from tests.pipeline.trainings import HOLD, tiny

STEPS, EVERY = 120, 20

_MAIN = """
import sys
import dflash.pipeline.kinds as kinds
kinds.DEFAULT_KINDS = "tests.pipeline.trainings:HELD"
kinds.load_kinds.__defaults__ = (kinds.DEFAULT_KINDS,)
from dflash.cli import main
main(sys.argv[1:])
"""


def inv(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-B", "-c", _MAIN, *words, "--root", str(folder), "--json"]
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


def killed(folder: Path, last: int, *words: str) -> str:
    """Start a run, and kill it when its training has done `last` steps, and kept a checkpoint of those that it was due
    to; its id."""
    (folder / HOLD).write_text(str(last))
    process, until = inv(folder, *words), time.monotonic() + 300
    saved = f"work/train/*/scratch/checkpoints/{name_of(last // EVERY * EVERY)}"
    while not (list(folder.glob(saved)) and logged(folder) == last):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert none_left(folder)
    (folder / HOLD).unlink()
    return sorted(each.name for each in (folder / "runs").iterdir())[-1]


def logged(folder: Path) -> int:
    """The last step of the training's log."""
    (log,) = (folder / "work" / "train").glob("*/metrics.jsonl")
    return int(read_jsonl(log)[-1]["step"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A root, and the records of three runs there: of one training, which two were killed in, and the third ended."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "tiny.yaml").write_text(tiny(STEPS, EVERY, is_whole=False))
    words = [f"{number} and {number} is {2 * number}, which is even, as any sum of two equals" for number in range(64)]
    talk = [[{"role": "user", "content": "And?"}, {"role": "assistant", "content": text}] for text in words]
    (folder / "talk.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in talk))
    first = killed(folder, 50, "train", "--pipeline", "tiny.yaml")
    second = killed(folder, 90, "resume")
    third = ended(inv(folder, "resume"))["id"]
    return folder, [load_record(folder, run) for run in (first, second, third)]


def shares(folder: Path, records: list[dict[str, Any]]) -> list[Share]:
    logs = [metrics_of(folder, record, step_of(record)) for record in records]
    return [own_share(folder, record, step_of(record), log) for record, log in zip(records, logs, strict=True)]


def step_of(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(step for step in record["steps"] if step["kind"] == "train")
    return found


def test_a_run_s_share_ends_where_the_next_went_on(runs: tuple[Path, list[dict[str, Any]]]):
    folder, records = runs
    first, second, third = (record["id"] for record in records)
    assert shares(folder, records) == [
        Share(0, None, False, 40, second, True),
        Share(40, first, False, 80, third, True),
        Share(80, second, True),
    ]


def test_a_report_and_a_comparison_show_no_rows_of_a_later_run(runs: tuple[Path, list[dict[str, Any]]]):
    folder, records = runs
    pages = [page(gather(folder, record)) for record in records]
    first, second, third = (record["id"] for record in records)
    assert [leads(html) for html in pages] == [
        [f"The log after step 40 is of run {second}, which went on from there, and is in its report."],
        [
            f"Steps 1 to 40 were done before, by run {first}. The log after step 80 is of run {third}, which went on "
            "from there, and is in its report."
        ],
        [f"Steps 1 to 80 were done before, by run {second} and those that it went on with."],
    ]
    lasts = [40, 80, STEPS]
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
    assert met[-1].step == 40
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


def leads(html: str) -> list[str]:
    return re.findall(r"<p class=.lead.>((?:Step|The log|Run).*?)</p>", html)


def test_a_run_whose_later_one_is_gone_shows_its_own_rows_alone_and_names_no_report_of_that(
    runs: tuple[Path, list[dict[str, Any]]],
):
    folder, records = runs
    second = folder / "runs" / records[1]["id"]
    second.rename(folder / "away")
    try:
        assert shares(folder, [records[0], records[2]]) == [
            Share(0, None, False, 40, second.name),
            Share(80, second.name, True),
        ]
        html = page(gather(folder, records[0]))
    finally:
        (folder / "away").rename(second)
    assert leads(html) == [f"The log after step 40 is of run {second.name}, which went on from there."]


A, B, C, D = (f"2026010{day}T000000-tiny" for day in (1, 2, 3, 4))


def share_of(root: Path, run: str, parts: dict[str, int], **more: Any) -> Share:
    """The share in a log whose folder notes these runs, by their first step."""
    folder = root / "work" / "train" / "1"
    folder.mkdir(parents=True)
    for name, first in parts.items():
        note_part(folder, name, first)
    step = {"name": "train", "kind": "train", "status": "failed", "folder": "work/train/1", "result": None, **more}
    return own_share(root, {"id": run, "steps": [step]}, step, folder / "metrics.jsonl")


def test_a_run_that_went_on_when_all_steps_were_done_has_none_of_them(tmp_path: Path):
    found = share_of(tmp_path, C, {A: 1}, status="ok", resumes=B, result={"resumed_at": 80})
    assert found == Share(80, A)
    assert str(found) == f"Steps 1 to 80 were done before, by run {A}."
    assert share_of(tmp_path / "other", A, {A: 1}, status="ok", result={"resumed_at": 0}) == Share(0)


def test_a_run_that_retried_has_its_steps_from_the_first_try_on(tmp_path: Path):
    assert share_of(tmp_path, B, {A: 1, B: 21}, status="ok", resumes=A, result={"resumed_at": 60}) == Share(20, A)


def test_steps_are_of_nobody_whose_were_all_done_again(tmp_path: Path):
    assert share_of(tmp_path, C, {A: 1, B: 1, C: 21}, resumes=B) == Share(20, B)
    assert share_of(tmp_path / "other", A, {A: 1, B: 41, C: 21, D: 21}) == Share(0, None, False, 20, D)


def test_a_report_says_who_began_a_training_anew(runs: tuple[Path, list[dict[str, Any]]], tmp_path: Path):
    _, records = runs
    share_of(tmp_path, A, {A: 1, B: 1})
    (tmp_path / "work" / "train" / "1" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
    record = json.loads(json.dumps(records[0] | {"id": A}))
    step_of(record)["folder"] = "work/train/1"
    html = page(gather(tmp_path, record))
    assert leads(html) == [f"Run {B} began it anew, in the same folder."]
    assert html.count("<h2>Training</h2>") == 1
