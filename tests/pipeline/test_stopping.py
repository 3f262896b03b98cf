"""What a stop leaves time for: the step that is at work, then each last step, unless one is told again."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dflash import cli_train
from dflash.hosts.chain import parse_chain
from dflash.hosts.failures import LostConnection
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.pipeline import following, stopping
from dflash.pipeline.away import Order, prepare
from dflash.pipeline.errand import Errand, load_errand
from dflash.pipeline.keys import HOME
from dflash.pipeline.launching import launch
from dflash.pipeline.policy import Limits
from dflash.pipeline.record import load_record
from dflash.pipeline.stopping import GRACE_S, Stops, last_of, limits_after, patience_s
from tests.lab.service import wait_until
from tests.pipeline.lab import SAMPLE_KINDS, Lab, end, none_left

SLOW = ("first.seconds=60",)


def of(lab: Lab, run: str, step: str) -> dict[str, Any]:
    return next(each for each in load_record(lab.root, run)["steps"] if each["name"] == step)


def stopped_in_its_last_step(work: Lab, *overrides: str) -> tuple[Any, Path]:
    """A run that was told to stop, and whose last step is at work."""
    run = work.start(*SLOW, *overrides)
    work.await_event("step_started", "first")
    run.send_signal(signal.SIGINT)
    return run, work.await_event("step_started", "clean")


def test_a_second_signal_kills_what_runs_and_one_is_no_last_steps_business():
    stops = Stops()
    assert (stops.told, stops.told_again) == (False, False)
    stops.signals.append(signal.SIGINT)
    assert (stops.told, stops.told_again) == (True, False)
    stops.excused = 1
    assert (stops.told, stops.told_again) == (False, False)
    stops.signals.append(signal.SIGINT)
    assert (stops.told, stops.told_again) == (True, True)


def test_a_stop_waits_for_the_step_and_for_each_last_one_that_may_run(work: Lab):
    work.declare(clean={"timeout": "10m"})
    text = work.file.read_text()
    work.file.write_text(text + "- {name: tell, uses: work}\n- {name: never, uses: work, when: host.gpus > 99}\n")
    last = last_of(work.plan().as_json())
    assert last == {"clean": 600.0, "tell": GRACE_S}
    assert patience_s(last.values()) == GRACE_S + 600 + GRACE_S + GRACE_S + GRACE_S
    assert patience_s([]) == GRACE_S
    assert limits_after(Limits(None, 7.0)) == Limits(GRACE_S, 7.0)
    assert limits_after(Limits(600.0)) == Limits(600.0)


def test_after_a_stop_a_last_step_has_its_timeout_and_is_tried_once(work: Lab):
    work.declare(clean={"timeout": "1.5s", "retry": {"attempts": 3, "on": ["timeout"], "backoff": 0.01}})
    run, folder = stopped_in_its_last_step(work, "clean.seconds=60")
    began = time.monotonic()
    run.communicate(timeout=30)
    assert run.returncode == 130
    assert 1.0 < time.monotonic() - began < 10
    clean = of(work, folder.name, "clean")
    assert (clean["status"], [each["reason"] for each in clean["attempts"]]) == ("failed", ["timeout"])
    assert "it took longer than its timeout, 1.5 s" in clean["error"]
    assert of(work, folder.name, "first")["status"] == "interrupted"


def test_a_last_step_without_a_timeout_has_as_long_as_a_step_that_saves(work: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stopping, "GRACE_S", 0.4)

    def interrupt() -> None:
        work.await_event("step_started", "first")
        os.kill(os.getpid(), signal.SIGINT)

    telling = threading.Thread(target=interrupt)
    telling.start()
    began = time.monotonic()
    outcome = work.run(*SLOW, "clean.seconds=60")
    telling.join()
    assert time.monotonic() - began < 40
    assert outcome.exit_code == 130
    (clean,) = (each for each in outcome.record["steps"] if each["name"] == "clean")
    assert "after a stop it has no longer unless it has a timeout in" in clean["error"]
    assert "clean      has 0.4 s, as the run was told to stop" in work.said.getvalue()


def test_a_second_ctrl_c_ends_a_last_step_now(work: Lab):
    tally = work.root.parent / f"{work.root.name}-tally"
    run, folder = stopped_in_its_last_step(work, f"clean.tally={tally}", "clean.fails=1", "clean.fault=deaf")
    wait_until(tally.exists, "the last step itself")
    time.sleep(0.3)
    began = time.monotonic()
    assert end(run, signal.SIGINT) == 130
    assert time.monotonic() - began < 5
    assert of(work, folder.name, "clean")["status"] == "interrupted"
    assert none_left(work.root)


# --- of a run that a host has


def sent(work: Lab, *overrides: str) -> Errand:
    """A run elsewhere whose first step is at work."""
    host = Host("there", parse_chain("local"), str(work.root / "far"))
    made = Order(work.load(*overrides), overrides, host, HOME / "envs" / "local", kinds=SAMPLE_KINDS)
    with reach(host.chain) as there:
        errand, _ = launch(there, prepare(there, made), work.root)
    events = Path(errand.folder) / "events.jsonl"
    wait_until(lambda: events.exists() and "step_started" in events.read_text(), "the first step")
    return errand


def test_inv_stop_waits_for_the_last_steps_of_a_run_there_and_says_for_which(
    work: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(stopping, "GRACE_S", 1.0)  # of who waits, not there
    monkeypatch.setattr(following, "_MARGIN_S", 0.0)
    work.declare(clean={"timeout": "20s"})
    errand = sent(work, *SLOW, "clean.seconds=4")
    cli_train.stop(run=errand.run, root=str(work.root), grace=10.0)
    said = capsys.readouterr().err
    assert "is told to stop; waits while it saves what it has, 1 s at most, then for clean, 20 s\n" in said
    assert f"./inv stop {errand.run} once more ends it now" in said
    assert of(work, errand.run, "first")["status"] == "interrupted"
    assert of(work, errand.run, "clean")["status"] == "ok"
    assert load_errand(work.root, errand.run).ended["status"] == 143


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), LostConnection("the connection broke", layer="there")])
def test_whoever_leaves_an_inv_stop_is_told_that_another_one_is_the_kill(
    failure: BaseException, work: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = work.root / "runs" / "r"
    folder.mkdir(parents=True)
    Errand("r", "there", "local", str(work.root / "far"), "j", "", "", "/p", "/s", {}, "now", "r").write(folder)

    def broken(*_: object) -> object:
        raise failure

    monkeypatch.setattr(following, "stop", broken)
    with pytest.raises(type(failure)) as left:
        cli_train.stop(run="r", root=str(work.root), grace=10.0)
    said = f"{capsys.readouterr().err}{left.value}"
    assert "it may have been told: ./inv follow r waits for it, ./inv stop r once more ends it now" in said


def test_a_second_inv_stop_ends_a_run_there_now(work: Lab):
    errand = sent(work, *SLOW, "clean.seconds=60")
    waiting = threading.Thread(target=following.stop, args=(errand,))
    waiting.start()
    try:
        events = Path(errand.folder) / "events.jsonl"
        wait_until(lambda: '"clean"' in events.read_text(), "the last step")
        began = time.monotonic()
        assert following.stop(errand).code == 143
        assert time.monotonic() - began < 10
    finally:
        waiting.join()
    record = load_record(Path(errand.root), errand.run)
    assert [each["status"] for each in record["steps"]] == ["interrupted", "pending", "pending", "interrupted"]
