"""What steps' processes are forked from: it may be missing, or be killed, and then steps fail that need not be lost."""

from __future__ import annotations

import io
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from dflash.pipeline.process import Forks
from dflash.pipeline.record import load_record
from dflash.pipeline.run import execute
from dflash.pipeline.view import Lines
from tests.lab.service import wait_until
from tests.pipeline.lab import SAMPLE_KINDS, Lab, end


def test_a_step_that_can_not_begin_fails_and_its_log_says_why(work: Lab):
    outcome = execute(work.plan(), work.root, Lines(io.StringIO()), "tests.nowhere:KINDS")
    assert outcome.exit_code == 1
    log = work.runs()[-1] / "logs" / "first.log"
    said = f"step first: its process ended with status 1 and without a result; its log is {log}"
    assert str(outcome.failure) == said
    assert "No module named 'tests.nowhere'" in log.read_text()


@pytest.mark.nightly
def test_when_it_is_killed_the_step_at_work_fails_and_the_others_run(work: Lab, tmp_path: Path):
    tally = tmp_path / "tally"
    run = work.start("first.seconds=60", f"first.tally={tally}")
    wait_until(tally.exists, "the step")
    (forks,) = psutil.Process(run.pid).children()
    forks.kill()
    _, said = run.communicate(timeout=60)
    assert run.returncode == 137
    assert "its process was killed by SIGKILL" in said
    statuses = [step["status"] for step in load_record(work.root)["steps"]]
    assert statuses == ["failed", "blocked", "ok", "ok"]


def test_a_signal_to_every_process_of_a_run_lets_its_step_save_what_it_has(lab: Lab):
    run = lab.start("train.steps=600", "train.seconds=0.05")
    lab.await_event("progress", "train")
    (forks,) = psutil.Process(run.pid).children()
    forks.terminate()
    time.sleep(0.3)
    assert end(run, signal.SIGTERM) == 143
    assert (
        int((lab.folder("train", "train.steps=600", "train.seconds=0.05") / "scratch" / "checkpoint").read_text()) > 0
    )


def test_a_process_that_ended_this_moment_can_be_stopped(tmp_path: Path):
    with Forks(dict(os.environ), SAMPLE_KINDS, tmp_path, tmp_path / "log") as forks:
        forks._pid = 2**22 + 1  # more than Linux gives to any
        forks.stop()
