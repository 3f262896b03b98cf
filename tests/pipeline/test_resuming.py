"""Runs that did not end well are gone on with, whenever they were killed, and nothing finished is run again."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest

from dflash import cli_train
from dflash.errors import ConfigError, DataError, UsageError
from dflash.pipeline import lock
from dflash.pipeline.record import load_record
from dflash.pipeline.resuming import again, goes_on_with, unfinished
from tests.lab.service import wait_until
from tests.pipeline.lab import Lab, end, none_left

LINES = """\
name: lines
steps:
  - name: first
    uses: work
    with: {label: first, tally: TALLY, seconds: 0.1}
  - name: flaky
    uses: work
    needs: [first]
    retry: {attempts: 2, backoff: 0.1}
    with: {label: flaky, tally: TALLY, seconds: 0.05, fails: 1, fault: lost}
  - name: beside
    uses: work
    with: {label: beside, tally: TALLY, seconds: 0.1}
  - name: both
    uses: work
    needs: [flaky, beside]
    with: {label: both, tally: TALLY}
finally:
  - name: clean
    uses: work
    with: {label: clean, tally: TALLY}
"""
ORDINARY = ("first", "flaky", "beside", "both")


def lines(root: Path, tally: Path) -> Lab:
    """A root with a pipeline that has a step that fails once, an independent one, and a last one."""
    root.mkdir()
    tally.write_text("")
    lab = Lab(root)
    lab.file.write_text(LINES.replace("TALLY", str(tally)))
    return lab


def made(lab: Lab) -> dict[str, tuple[str, str]]:
    """Of each step, its key and its output."""
    steps = lab.plan().steps
    return {each.step.name: (each.key, (lab.folder(each.step.name) / "made.txt").read_text()) for each in steps}


def begun(tally: Path) -> dict[str, int]:
    """How often each step was begun, by any run."""
    said = tally.read_text().splitlines()
    return {name: said.count(f"begin {name}") for name in (*ORDINARY, "clean")}


def finished(lab: Lab) -> set[str]:
    return {name for name in ORDINARY if (lab.folder(name) / "done.json").exists()}


def kill_and_resume(lab: Lab, tally: Path, after_s: float) -> None:
    """Run the pipeline, kill its runner at a moment, and go on with it: nothing that was finished is run again."""
    run = lab.start()
    time.sleep(after_s)
    end(run, signal.SIGKILL)
    assert none_left(lab.root)
    wait_until(lambda: lock.owner(lab.root) is None, "the end of the last process that had the lock")
    records = list((lab.root / "runs").glob("*/record.json"))
    if records and load_record(lab.root)["status"] == "ok":
        return
    done, before = finished(lab), begun(tally)
    outcome = lab.resume() if records else lab.run()
    assert outcome.exit_code == 0
    after = begun(tally)
    assert {name: after[name] for name in done} == {name: before[name] for name in done}
    assert all(after[name] > before[name] for name in set(ORDINARY) - done)
    assert after["clean"] == before["clean"] + 1
    skipped = {step["name"] for step in outcome.record["steps"] if step["status"] == "skipped"}
    assert skipped == done


def killed_at_random(tmp_path: Path, moments: int, seed: int) -> None:
    """Each time anew, at moments that are spread over all that a run takes, the end is that of one left in peace."""
    chance, tally = random.Random(seed), tmp_path / "tally"
    undisturbed = lines(tmp_path / "undisturbed", tally)
    began = time.monotonic()
    undisturbed.start().communicate()
    takes, expected = time.monotonic() - began, made(undisturbed)
    assert begun(tally) == {"first": 1, "flaky": 2, "beside": 1, "both": 1, "clean": 1}
    for number in range(moments):
        lab = lines(tmp_path / f"killed-{number}", tally)
        kill_and_resume(lab, tally, (number + chance.random()) / moments * takes)
        assert made(lab) == expected
        assert none_left(lab.root)


def test_a_run_killed_at_random_moments_and_gone_on_with_ends_like_one_left_in_peace(tmp_path: Path):
    killed_at_random(tmp_path, moments=2, seed=8)


@pytest.mark.nightly
def test_a_run_killed_at_fifty_random_moments_ends_like_one_left_in_peace(tmp_path: Path):
    killed_at_random(tmp_path, moments=50, seed=50)


# --- which run is gone on with, and what is said


def test_the_newest_run_that_did_not_end_well_is_gone_on_with_once(
    work: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(work.root)
    with pytest.raises(UsageError, match=r"every run has ended well, or is at work; \./inv runs lists them"):
        unfinished(work.root)
    assert work.run("second.fails=1").exit_code == 1
    failed = load_record(work.root)["id"]
    assert unfinished(work.root) == failed
    plan, request = again(work.root, failed)
    assert goes_on_with(plan, failed) == (
        f"goes on with run {failed}; finished: first, other; goes on with: second; still to run: clean"
    )
    assert request["overrides"] == ["second.fails=1"]
    work.file.unlink()  # the run has kept what it was asked to do
    with pytest.raises(UsageError, match="--wait: is for a run on a host"):
        cli_train.resume(run=failed, root=str(work.root), wait=True, as_json=False)
    with pytest.raises(SystemExit, match="1"):
        cli_train.resume(run="", root=str(work.root), wait=False, as_json=False)
    assert capsys.readouterr().err.startswith(f"goes on with run {failed}; finished: first, other; goes on with: sec")
    record = load_record(work.root)
    assert (record["resumes"], unfinished(work.root)) == (failed, record["id"])
    assert str(work.file) in (work.runs()[-1] / "request.json").read_text()


def test_a_run_whose_work_was_done_with_the_same_command_is_not_gone_on_with(work: Lab, tmp_path: Path):
    options = ("second.fails=1", f"second.tally={tmp_path / 'tally'}")
    assert [work.run(*options).exit_code for _ in range(2)] == [1, 0]
    with pytest.raises(UsageError, match="every run has ended well"):
        unfinished(work.root)


def test_a_run_that_was_sent_here_is_gone_on_with_and_its_file_is_not_asked_for(work: Lab, tmp_path: Path):
    (tmp_path / "corpus").touch()
    work.declare(second={"inputs": [str(tmp_path / "corpus")]})
    assert work.run("second.fails=1").exit_code == 1
    kept = work.runs()[-1] / "request.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "folder": None}))
    work.file.unlink()
    _, request = again(work.root, work.runs()[-1].name)
    assert request["folder"] is None
    (tmp_path / "corpus").unlink()
    with pytest.raises(ConfigError) as caught:
        again(work.root, work.runs()[-1].name)
    assert str(caught.value).startswith(f"{work.file}:")
    assert f"no file matches '{tmp_path}/corpus'" in str(caught.value)


def test_a_run_that_ended_well_or_would_lose_what_is_finished_is_refused(work: Lab, monkeypatch: pytest.MonkeyPatch):
    assert work.run("second.fails=1").exit_code == 1
    failed = load_record(work.root)["id"]
    monkeypatch.setattr("platform.python_version", lambda: "3.99.0")
    with pytest.raises(UsageError) as caught:
        again(work.root, failed)
    said = f"run {failed}: step first is finished, and would have to be made again: python: "
    assert str(caught.value).startswith(said)
    monkeypatch.undo()
    assert work.run().exit_code == 0
    ended = load_record(work.root)["id"]
    with pytest.raises(UsageError, match=f"run {ended} has ended well: nothing of it is left to do"):
        again(work.root, ended)


def test_a_run_that_kept_no_request_or_a_damaged_one_says_so(work: Lab):
    assert work.run("second.fails=1").exit_code == 1
    kept = work.runs()[-1] / "request.json"
    for text in ("{", "[]", "{}"):
        kept.write_text(text)
        with pytest.raises(DataError, match=r"request\.json: is damaged; \./inv train with the same options"):
            again(work.root, work.runs()[-1].name)
    kept.unlink()
    with pytest.raises(UsageError, match="has not kept what it was asked to do"):
        again(work.root, work.runs()[-1].name)
