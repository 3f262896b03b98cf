"""Attempts at steps in real processes: what is tried again, what a limit ends, and what runs all the same."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from dflash.errors import StepFailed, UsageError
from dflash.hosts.failures import LoginFailed, LostConnection
from dflash.pipeline.attempts import Job, Watch, _require_outputs
from dflash.pipeline.child import _reason
from dflash.pipeline.events import read_jsonl
from dflash.pipeline.memory import oom_kills
from dflash.pipeline.policy import Limits
from dflash.pipeline.record import load_record
from dflash.pipeline.redaction import Redaction
from dflash.pipeline.retrying import AttemptFailed
from dflash.pipeline.schema import Step
from tests.lab.service import wait_until
from tests.pipeline.lab import WORK, Lab, assert_hidden, end, none_left
from tests.pipeline.sample_kinds import KINDS, WorkConfig

QUICK = {"backoff": 0.01}


@pytest.fixture
def tally(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file outside of the root that each execution leaves a line in."""
    return tmp_path_factory.mktemp("tally") / "lines"


def secret() -> str:
    """One that is in no file: this one is source, which may show none."""
    return f'{token_hex(4)} "öäü"/+&'


def statuses(record: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["status"] for each in record["steps"]}


def of(record: dict[str, Any], step: str) -> dict[str, Any]:
    return next(each for each in record["steps"] if each["name"] == step)


def attempts(record: dict[str, Any], step: str) -> list[tuple[str, str | None, int | None]]:
    return [(each["status"], each["reason"], each["exit_code"]) for each in of(record, step)["attempts"]]


def test_a_step_that_succeeds_at_its_second_attempt_is_finished_like_any_other(work: Lab, tally: Path):
    given = [f"first.tally={tally}", "first.fails=1", "first.fault=lost"]
    work.declare(first={"retry": {"attempts": 3, **QUICK}})
    outcome = work.run(*given)
    assert outcome.exit_code == 0
    assert tally.read_text().splitlines() == ["begin a", "begin a", "end a"]
    record = load_record(work.root)
    assert attempts(record, "first") == [("failed", "lost", 255), ("ok", None, 0)]
    first, second = of(record, "first")["attempts"]
    assert (first["number"], second["number"], second["error"]) == (1, 2, None)
    assert first["error"] == "step first: ssh:gpu1: the stream broke"
    assert of(record, "first")["started"] <= first["started"] < second["started"]
    events = [each for each in read_jsonl(work.runs()[-1] / "events.jsonl") if each.get("step") == "first"]
    told = [(each["event"], each.get("attempt"), each.get("reason")) for each in events]
    assert told[:3] == [("step_started", 1, None), ("attempt_failed", 1, "lost"), ("step_started", 2, None)]
    assert 0 <= events[1]["wait_s"] <= 0.01
    assert "first      attempt 1 of 3 failed, tries again in 0.0 s: step first: ssh:gpu1" in work.said.getvalue()

    work.file.write_text(WORK)  # however often it may be tried is no part of its key
    again = work.run(*given).record
    assert statuses(again) == {"first": "skipped", "second": "skipped", "other": "skipped", "clean": "ok"}
    assert attempts(again, "first") == []


@pytest.mark.nightly
def test_an_attempt_goes_on_from_what_the_one_before_left(lab: Lab):
    lab.declare(train={"timeout": 1.5, "retry": {"attempts": 9, **QUICK}})
    outcome = lab.run("train.steps=22", "train.seconds=0.1")
    assert outcome.exit_code == 0
    assert attempts(outcome.record, "train")[0] == ("failed", "timeout", 124)
    assert of(outcome.record, "train")["result"]["started_at"] > 0


def test_a_failure_blocks_what_needs_it_and_nothing_else_and_last_steps_run_whatever_happens(work: Lab):
    outcome = work.run("first.fails=1", "first.fault=exit", "clean.fails=1", "clean.fault=data")
    record = load_record(work.root)
    assert statuses(record) == {"first": "failed", "second": "blocked", "other": "ok", "clean": "failed"}
    assert of(record, "second")["why"] == ["it needs first (failed)"]
    assert "second     blocked: it needs first (failed)" in work.said.getvalue()
    assert (record["status"], outcome.exit_code) == ("failed", 9)  # of the first, not of the last step
    assert "step first: its process ended with status 9" in str(outcome.failure)
    assert work.run("clean.fails=1", "clean.fault=data").exit_code == 4


def test_a_step_that_does_not_make_what_it_promises_has_failed(work: Lab):
    work.declare(other={"outputs": ["*.txt", "model/*.safetensors"]})
    outcome = work.run()
    where = work.folder("other")
    said = f"step other: it made no model/*.safetensors; its folder is {where}; its outputs are in {work.file}"
    assert str(outcome.failure) == said
    assert attempts(outcome.record, "other") == [("failed", "exit", 1)]
    assert work.statuses()["other"] == "resume"
    assert (where / "made.txt").read_text() == "c"  # kept


def test_a_step_whose_inputs_change_while_it_runs_is_not_finished(work: Lab, tally: Path):
    tally.write_text("old\n")
    work.declare(other={"inputs": [str(tally)]})
    outcome = work.run(f"other.tally={tally}")
    expected = f"step other: what it reads was changed after the run was planned: files.{tally}: "
    assert str(outcome.failure).startswith(expected)
    assert statuses(outcome.record) == {"first": "ok", "second": "ok", "other": "failed", "clean": "ok"}
    assert not (work.folder("other", f"other.tally={tally}") / "done.json").exists()


@pytest.mark.parametrize("promised", ["*.json", "**", ".hidden", "scratch/*"])
def test_what_the_store_keeps_there_is_nothing_that_a_step_has_made(tmp_path: Path, promised: str):
    for name in ("started.json", ".hidden", "scratch/part", "empty/"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    made = Step("push", KINDS["work"], (), WorkConfig(), {}, None, outputs=(promised,))
    job = Job(made, {}, tmp_path, tmp_path / "log", {}, "pipeline.yaml")
    with pytest.raises(AttemptFailed, match=re.escape(f"it made no {promised};")):
        _require_outputs(job)
    for name in ("made.json", "model/.kept"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    _require_outputs(replace(job, step=replace(made, outputs=("*.json", "**"))))


def test_an_attempt_that_can_not_be_made_is_noted_as_failed(work: Lab):
    work.declare(first={"env": {"LONG": "x" * 200_000}})
    outcome = work.run()
    (entry,) = of(outcome.record, "first")["attempts"]
    assert (entry["status"], entry["exit_code"]) == ("failed", 5)
    assert "Argument list too long" in entry["error"]
    assert statuses(outcome.record)["clean"] == "ok"


def test_an_attempt_is_lost_with_a_connection_and_not_by_a_status():
    assert _reason(LostConnection("the stream broke", layer="ssh:gpu1")) == "lost"
    assert _reason(StepFailed("it ended with status 255", status=255)) == "exit"
    assert _reason(LoginFailed("no key", layer="ssh:gpu1")) == "exit"
    assert _reason(StepFailed("memory ran out", status=1, where="gpu1", reason="memory")) == "memory"


def test_a_limit_ends_a_step_as_ctrl_c_does_and_says_where_it_is(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dflash.pipeline.attempts.GRACE_S", 0.1)
    lab.declare(train={"no_output_timeout": "0.4s", "retry": {"attempts": 2, "on": ["timeout"]}})
    outcome = lab.run("train.fault=deaf")
    assert outcome.exit_code == 124
    log = lab.runs()[-1] / "logs" / "train.log"
    expected = f"step train: it said nothing for longer than its no_output_timeout, 0.4 s; its log is {log}; the limit"
    assert str(outcome.failure).startswith(expected)
    assert str(outcome.failure).endswith(f"is in {lab.file}")
    assert attempts(outcome.record, "train") == [("failed", "no_output", 124)]
    assert "has passed its no_output_timeout, and is told to stop" in lab.said.getvalue()


def test_a_growing_log_and_a_word_are_output(tmp_path: Path):
    log, now = tmp_path / "log", [0.0]
    watch = Watch(Limits(timeout_s=100, no_output_s=20), log, lambda: now[0])
    for _ in range(2):
        now[0] += 15
        with log.open("a") as file:
            file.write("a line\n")
        assert watch.passed() is None
        now[0] += 15
        watch.heard()
        assert watch.passed() is None
    now[0] += 21
    assert watch.passed() == "no_output"
    now[0] += 20
    assert watch.passed() == "timeout"
    assert Watch(Limits(), log).passed() is None


def test_a_stop_while_a_step_waits_for_its_next_attempt_ends_at_once(work: Lab, tally: Path):
    work.declare(first={"retry": {"attempts": 2, "on": ["exit"], "backoff": "1m"}})
    run = work.start(f"first.tally={tally}", "first.fails=1")
    folder = work.await_event("attempt_failed", "first")
    began = time.monotonic()
    assert end(run, signal.SIGINT) == 130
    assert time.monotonic() - began < 10
    record = load_record(work.root, folder.name)
    assert statuses(record) == {"first": "interrupted", "second": "pending", "other": "pending", "clean": "ok"}
    assert record["status"] == "interrupted"
    assert tally.read_text() == "begin a\n"


@pytest.mark.nightly
def test_after_a_second_signal_no_last_step_runs(work: Lab, tally: Path):
    run = work.start(f"first.tally={tally}", "first.fails=1", "first.fault=deaf")
    folder = work.await_event("step_started", "first")
    wait_until(tally.exists, "the step itself")
    time.sleep(0.3)
    run.send_signal(signal.SIGINT)
    time.sleep(0.6)
    assert end(run, signal.SIGINT) == 130
    assert statuses(load_record(work.root, folder.name))["clean"] == "pending"
    assert none_left(work.root)


# --- what the environment gives


@pytest.mark.nightly
def test_a_step_has_its_variables_and_its_secrets_and_no_other_steps(work: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PUSH_TOKEN", secret())
    work.declare(first={"env": {"COLOUR": "blue"}, "secrets": ["PUSH_TOKEN"]})
    outcome = work.run("first.tells=PUSH_TOKEN", "other.tells=COLOUR")
    assert str(outcome.failure).startswith("step other: KeyError: 'COLOUR'")
    assert statuses(outcome.record)["first"] == "ok"
    outcome = work.run("first.tells=COLOUR", "other.tells=PUSH_TOKEN")
    assert str(outcome.failure).startswith("step other: KeyError: 'PUSH_TOKEN'")
    assert of(outcome.record, "first")["result"]["said"]["blue"][0] == "blue"


@pytest.mark.parametrize("fault", ["raise", pytest.param("tell", marks=pytest.mark.nightly)])
def test_a_secret_is_nowhere_below_the_root_and_in_nothing_that_is_said(
    work: Lab, fault: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    value = secret()
    monkeypatch.setenv("PUSH_TOKEN", value)
    work.declare(first={"secrets": ["PUSH_TOKEN"], "retry": {"attempts": 2, "on": ["exit"], **QUICK}})
    work.run("first.tells=PUSH_TOKEN", f"first.fault={fault}")
    log = (work.runs()[-1] / "logs" / "first.log").read_text()
    assert log.count("***") >= 8
    assert statuses(load_record(work.root))["first"] == ("failed" if fault == "tell" else "ok")
    assert_hidden(value, work.root)
    said = capfd.readouterr()
    for text in (said.out, said.err, work.said.getvalue()):
        assert not any(form.decode() in text for form in Redaction([value])._forms)


def test_a_secret_that_is_missing_is_told_before_anything_runs(work: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PUSH_TOKEN", raising=False)
    work.declare(clean={"secrets": ["PUSH_TOKEN"]})
    with pytest.raises(UsageError, match="step clean: the secret PUSH_TOKEN is not set"):
        work.run()
    assert not (work.root / "runs").exists()


@pytest.mark.nightly
def test_a_step_that_says_much_is_not_held_up_by_its_secrets(work: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PUSH_TOKEN", secret())
    work.declare(first={"secrets": ["PUSH_TOKEN"]})
    work.run("first.fails=1", "first.fault=flood")
    log = work.runs()[-1] / "logs" / "first.log"
    assert log.stat().st_size > 30e6
    assert log.read_bytes().endswith(b"the end ***\n")


def test_a_secret_changes_no_word_of_the_runners_own_and_one_that_is_not_used_hides_nothing(
    work: Lab, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PUSH_TOKEN", "event")
    monkeypatch.setenv("LETTER", "e")
    work.declare(
        first={"secrets": ["PUSH_TOKEN"], "with": {"label": "hello"}},
        other={"secrets": ["LETTER"], "when": "host.gpus > 99"},
    )
    record = work.run().record
    assert statuses(record) == {"first": "ok", "second": "ok", "other": "left out", "clean": "ok"}
    assert of(record, "first")["result"]["label"] == "hello"


# --- what the kernel has killed


def test_kills_for_want_of_memory_are_read_of_this_control_group(tmp_path: Path):
    newer, older = tmp_path / "job" / "step", tmp_path / "memory" / "job"
    newer.mkdir(parents=True)
    older.mkdir(parents=True)
    (newer / "memory.events").write_text("low 0\noom 4\noom_kill 3\n")
    (older / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert oom_kills("0::/job/step\n", tmp_path) == 3
    assert oom_kills("9:cpu,cpuacct:/x\n4:memory:/job\n0::/none\n", tmp_path) == 2
    assert oom_kills("4:memory:/not/there\n", tmp_path) == 0
    assert oom_kills() >= 0
