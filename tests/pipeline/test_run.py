"""Runs of real step processes: their record, their failures, and how they are stopped."""

from __future__ import annotations

import io
import json
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from dflash.errors import BusyError, DFlashError, StorageError, UsageError
from dflash.pipeline import lock
from dflash.pipeline.events import read_jsonl
from dflash.pipeline.record import Sender, load_record, new_run, runs
from dflash.pipeline.report.contents import gather
from dflash.pipeline.request import request_of
from dflash.pipeline.run import execute
from dflash.pipeline.view import Lines
from tests.lab.service import wait_until
from tests.pipeline.lab import SAMPLE, SAMPLE_KINDS, Lab, end, none_left, step_processes

SLOW = ("train.steps=200", "train.seconds=0.1")


def of(record: dict, step: str) -> dict:
    return next(each for each in record["steps"] if each["name"] == step)


def test_a_run_records_everything_and_the_next_one_skips_it(lab: Lab):
    outcome = lab.run()
    assert outcome.exit_code == 0
    record = load_record(lab.root)
    assert record == outcome.record
    assert record["status"] == "ok"
    assert [each["status"] for each in record["steps"]] == ["ok"] * 5
    assert record["acceptance_length"] == 2.5
    assert record["greedy_identical"] == record["greedy_total"] == 2
    assert record["peak_rss_mb"] > of(record, "train")["peak_rss_mb"] > 10
    assert of(record, "prewarm")["result"] == {"warm_for": 5}
    assert of(record, "train")["result"] == {"started_at": 0, "target": {"characters": 5}, "loss": 0.0}
    assert (lab.folder("train") / "model.txt").read_text() == "HELLO"
    run = lab.root / "runs" / record["id"]
    assert json.loads((run / "plan.json").read_text())["steps"][3]["config"]["steps"] == 5
    assert "printed on standard output" in (run / "logs" / "check.log").read_text()
    assert "<svg" in (run / "report.html").read_text()
    assert [each["event"] for each in read_jsonl(run / "events.jsonl")][:2] == ["run_started", "step_started"]

    again = lab.run().record
    assert [each["status"] for each in again["steps"]] == ["ok", *["skipped"] * 4]
    assert again["acceptance_length"] == 2.5
    assert of(again, "train")["why"] == ["nothing it depends on has changed"]
    assert "skipped: nothing it depends on has changed" in lab.said.getvalue()


def test_an_input_made_again_with_the_same_content_spares_what_follows(ran: Lab):
    (ran.folder("target") / "text.txt").unlink()
    assert ran.statuses()["train"] == "run"
    record = ran.run().record
    assert of(record, "target")["why"] == ["output text.txt is missing"]
    assert of(record, "target")["status"] == "ok"
    assert of(record, "train")["status"] == "skipped"


def test_what_was_made_from_another_input_is_moved_aside_and_made_again(ran: Lab):
    kept = ran.folder("train")
    started = json.loads((kept / "done.json").read_text())
    started["contents"]["target"] = "of an earlier attempt"
    (kept / "done.json").write_text(json.dumps(started))
    record = ran.run().record
    assert of(record, "train")["why"] == ["what target made has changed"]
    assert (kept.with_name(f"{kept.name}.replaced-1") / "model.txt").exists()


@pytest.mark.parametrize(
    ("fault", "status", "line"),
    [
        ("data", 4, "step train: corpus.jsonl:3: this line is not JSON; remove it"),
        ("raise", 1, "step train: RuntimeError: a bug in the step; the traceback is in {log}"),
        ("kill", 137, "step train: its process was killed by SIGKILL (the kernel does that when"),
        ("exit", 9, "step train: its process ended with status 9 and without a result; its log is {log}"),
        ("memory", 1, "step train: memory ran out; free memory"),
        ("denied", 5, "model.txt: Permission denied; check the owner"),
        ("rust", 5, "No space left on device; free space on that disk"),
    ],
)
def test_a_failed_step_gives_one_line_and_its_own_status(ran: Lab, fault: str, status: int, line: str):
    outcome = ran.run(f"train.fault={fault}")
    assert outcome.exit_code == status
    assert line.format(log=ran.runs()[-1] / "logs" / "train.log") in str(outcome.failure)
    record = load_record(ran.root)
    assert record["status"] == of(record, "train")["status"] == "failed"
    assert of(record, "train")["error"] == str(outcome.failure)
    assert of(record, "evaluate")["status"] == "blocked"
    assert of(record, "evaluate")["why"] == ["it needs train (failed)"]
    if fault == "raise":
        assert "a bug in the step" in (ran.runs()[-1] / "logs" / "train.log").read_text()
    assert ran.statuses(f"train.fault={fault}")["train"] == "resume"


def test_processes_that_a_step_leaves_behind_are_ended_with_it(ran: Lab):
    assert ran.run("train.fault=leave").exit_code == 0
    assert not step_processes(ran.root)


def test_a_thread_left_running_does_not_hold_a_finished_step(ran: Lab):
    began = time.monotonic()
    assert ran.run("train.fault=hang").exit_code == 0
    assert time.monotonic() - began < 30


def test_a_result_that_is_no_number_is_null_in_the_record(ran: Lab):
    ran.run("train.fault=nan")
    assert of(load_record(ran.root), "train")["result"]["loss"] is None


def test_a_second_run_at_once_is_refused_and_named(lab: Lab):
    first = lab.start(*SLOW)
    try:
        run = lab.await_event("progress", "train")
        with pytest.raises(BusyError) as caught:
            lab.run()
        assert f"run {run.name} (process {first.pid}) is at work here" in str(caught.value)
        assert lab.runs() == [run]
        assert load_record(lab.root)["status"] == "running"
    finally:
        end(first)


def test_a_killed_runner_leaves_no_process_and_the_next_run_resumes(lab: Lab):
    first = lab.start(*SLOW, "train.fault=leave")
    run = lab.await_event("progress", "train")
    assert len(step_processes(lab.root)) > 3  # the runner, its keeper, the step and what that has left
    end(first, signal.SIGKILL)
    assert none_left(lab.root)
    wait_until(lambda: lock.owner(lab.root) is None, "the end of the last process that had the lock")
    record = load_record(lab.root, run.name)
    train = of(record, "train")
    assert record["status"] == train["status"] == "interrupted"
    assert "ended without a word; it was last heard of then" in train["error"]
    heard = read_jsonl(run / "events.jsonl")[-1]["time"]
    (attempt,) = train["attempts"]
    assert attempt["seconds"] == pytest.approx(heard - attempt["started"], abs=0.01)
    assert 0 < attempt["seconds"] <= train["seconds"] <= record["wall_s"]
    (span,) = gather(lab.root, record).spans["train"]
    assert (span.seconds, span.told) == (
        attempt["seconds"],
        "attempt 1: the run ended without a word; it was last heard of then",
    )
    assert lab.statuses(*SLOW, "train.fault=leave")["train"] == "resume"
    assert lab.why("train", *SLOW, "train.fault=leave") == (f"it was started by run {run.name} and has not finished",)


def test_a_run_begun_right_after_its_predecessor_was_killed_waits_for_its_end(lab: Lab):
    first = lab.start("train.steps=3", "train.seconds=0.5")
    lab.await_event("progress", "train")
    end(first, signal.SIGKILL)
    assert lab.run("train.steps=3", "train.seconds=0.5").exit_code == 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.nightly)]
)
def test_a_stopped_run_saves_what_it_has_and_goes_on_later(lab: Lab, number: int, code: int):
    first = lab.start("train.steps=8", "train.seconds=0.15")
    run = lab.await_event("progress", "train")
    assert end(first, number) == code
    record = load_record(lab.root, run.name)
    assert record["status"] == of(record, "train")["status"] == "interrupted"
    outcome = lab.run("train.steps=8", "train.seconds=0.15")
    assert of(outcome.record, "train")["result"]["started_at"] > 0
    assert of(outcome.record, "train")["planned"] == "resume"
    assert of(outcome.record, "target")["status"] == "skipped"


def test_a_second_ctrl_c_kills_a_step_that_does_not_listen(lab: Lab):
    first = lab.start("train.fault=deaf")
    lab.await_event("step_started", "train")
    time.sleep(1.0)
    first.send_signal(signal.SIGINT)
    lab.await_event("step_started", "train")
    time.sleep(0.6)
    began = time.monotonic()
    assert end(first, signal.SIGINT) == 130
    assert time.monotonic() - began < 5


def test_a_step_killed_from_outside_is_resumed(lab: Lab):
    first = lab.start(*SLOW)
    lab.await_event("progress", "train")
    step = psutil.Process(first.pid).children()[0].children()[0].children()[0]
    step.kill()
    _, said = first.communicate(timeout=20)
    assert first.returncode == 137
    assert "killed by SIGKILL" in said
    assert lab.statuses(*SLOW)["train"] == "resume"


def test_a_folder_that_can_not_be_written_is_one_line(sealed: Path):
    with pytest.raises(StorageError, match=r"sealed/runs: .*(Read-only|denied)"):
        Lab(sealed).run()


@pytest.mark.parametrize("fault", ["fill", "fill unsaid"])
def test_a_full_disk_is_one_line_and_leaves_a_record(small_disk: Path, fault: str):
    lab = Lab(small_disk)
    lab.file.write_text(SAMPLE)
    outcome = lab.run(f"train.fault={fault}")
    assert outcome.exit_code == StorageError.exit_code
    assert "No space left on device; free space on that disk" in str(outcome.failure)
    assert not step_processes(small_disk)
    (lab.folder("train", f"train.fault={fault}") / "model.txt").unlink()
    assert load_record(lab.root)["status"] in ("failed", "interrupted")
    assert lab.run().exit_code == 0


def test_a_run_that_may_wait_for_the_lock_is_planned_again_once_it_has_it(lab: Lab):
    read = lab.root / "read.txt"
    lab.file.write_text(
        "name: one\nsteps: [{name: only, uses: work, inputs: [read.txt]}]\n".replace("read.txt", str(read))
    )
    read.write_text("old")
    plan = lab.plan()
    request = request_of(plan.pipeline, (), plan.host, SAMPLE_KINDS, lab.root)
    read.write_text("new")
    sender = Sender("run-1", "ann@desk", waits=True)
    outcome = execute(plan, lab.root, Lines(io.StringIO()), SAMPLE_KINDS, sender, request)
    assert outcome.exit_code == 0
    assert lab.statuses() == {"only": "skip"}


def test_only_local_hosts_are_run_on(lab: Lab):
    elsewhere = lab.plan(host="ssh:gpu1/pct:200")
    with pytest.raises(UsageError, match="runs on local only"):
        execute(elsewhere, lab.root, Lines(io.StringIO()))
    assert not (lab.root / "runs").exists()


def test_a_record_that_does_not_exist_is_named(ran: Lab):
    with pytest.raises(DFlashError, match="there is no run 'nope'"):
        load_record(ran.root, "nope")
    shutil.rmtree(ran.root / "runs")
    with pytest.raises(UsageError, match="there is no run yet"):
        load_record(ran.root)


def test_runs_of_one_second_sort_in_the_order_in_which_they_started(lab: Lab):
    made = [new_run(lab.root, "sample").name for _ in range(12)]
    for name in made:
        (lab.root / "runs" / name / "record.json").write_text("{}")
    assert runs(lab.root) == made
