"""How a run that is elsewhere ends here: followed, stopped, refused, never started, or gone; and what comes home."""

from __future__ import annotations

import fcntl
import io
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dflash import cli_train
from dflash.errors import BusyError, ChainError, StepFailed, UsageError
from dflash.hosts import jobs
from dflash.hosts.chain import parse_chain
from dflash.hosts.command import Command
from dflash.hosts.failures import LostConnection
from dflash.hosts.inventory import Host
from dflash.hosts.jobs import Job
from dflash.hosts.reach import reach
from dflash.pipeline import following, lock
from dflash.pipeline.away import Order, prepare
from dflash.pipeline.errand import Errand, load_errand
from dflash.pipeline.following import NeverStarted, Replay, fetch, follow, stop
from dflash.pipeline.keys import HOME
from dflash.pipeline.launching import launch
from dflash.pipeline.record import load_record, new_record
from dflash.pipeline.view import Lines
from tests.lab.service import wait_until
from tests.pipeline.lab import Lab


@pytest.fixture
def away(tmp_path: Path) -> Errand:
    """A run that this machine sent to itself, as if to another."""
    root, job = str(tmp_path / "far"), jobs.new_id()
    return Errand("r", "there", "local", root, job, "", "", "/p", "/s", {}, "now", "r")


def view() -> Lines:
    return Lines(io.StringIO())


def test_the_second_of_two_who_planned_at_once_is_told_what_to_do_and_its_record_says_why_it_failed(
    lab: Lab, capsys: pytest.CaptureFixture[str]
):
    host = Host("there", parse_chain("local"), str(lab.root / "far"))
    slow = ("train.steps=600", "train.seconds=0.1")
    kinds = "tests.pipeline.sample_kinds:KINDS"
    order = Order(lab.load(*slow), slow, host, HOME / "envs" / "local", kinds=kinds, check=lambda *_: None)
    with reach(host.chain) as there:
        ready = prepare(there, order)
        first, _ = launch(there, ready, lab.root)
        log = Path(first.folder) / "events.jsonl"
        wait_until(lambda: log.exists() and '"done"' in log.read_text(), "the training")
        second, folder = launch(there, ready, lab.root)
        job, failure = follow(second, view())
        assert isinstance(failure, StepFailed)
        assert (job.code, failure.status) == (6, 6)
        assert failure.cure == f"wait for it with --wait, or end it: ./inv stop {first.run}, where it was started"
        fetch(second, job, folder, failure)
        record = load_record(lab.root, second.run)
        assert record["status"] == "failed"
        assert f"run {first.run} of " in record["steps"][0]["error"]
        capsys.readouterr()
        cli_train.stop(run=first.run, root=str(lab.root), grace=10.0)
    said = capsys.readouterr().err
    assert f"there: run {first.run} is told to stop; waits while it saves what it has, 120 s at most" in said
    assert f"./inv resume {first.run} goes on with it" in said
    assert load_record(lab.root, first.run)["status"] == "interrupted"


def test_a_run_that_never_started_is_noted_so_and_is_not_at_work(away: Errand, lab: Lab):
    folder = lab.root / "runs" / "r"
    folder.mkdir(parents=True)
    away.write(folder)
    (folder / "record.json").write_text(json.dumps(new_record("r", lab.plan(), lab.root, {})))
    assert load_record(lab.root, "r")["status"] == "running"
    for _ in range(2):
        with pytest.raises(NeverStarted, match=r"^local: run r never started there; \./inv resume r starts it"):
            cli_train.follow(run="r", root=str(lab.root), offset=0)
        assert load_errand(lab.root, "r").ended == {"state": "never started"}
    assert load_record(lab.root, "r")["status"] == "interrupted"


def test_that_the_job_of_a_run_is_gone_does_not_mean_that_it_never_started(away: Errand):
    gone = pytest.raises(UsageError, match=r"^local: the job of run r is not there any more; \./inv show r")
    with gone as caught:
        follow(replace(away, ended={"state": "ended", "status": 0}), view())
    assert not isinstance(caught.value, NeverStarted)
    Path(away.folder).mkdir(parents=True)
    with gone:
        stop(away)


def test_what_else_is_wrong_is_said_as_it_is(away: Errand):
    with pytest.raises(ChainError):
        follow(replace(away, chain="nonsense:1"), view())
    with pytest.raises(UsageError, match="is not the id of a job"):
        follow(replace(away, job="a/b"), view())


def test_what_is_for_a_job_is_refused_for_a_run(tmp_path: Path):
    with pytest.raises(UsageError, match=r"^--offset: is for a job, not for a run; name the job's host with --host"):
        cli_train.follow(run="r", root=str(tmp_path), offset=7)
    with pytest.raises(UsageError, match=r"^--grace: is for a job"):
        cli_train.stop(run="r", root=str(tmp_path), grace=5.0)


def test_a_stop_reaches_the_host_again_where_the_connection_breaks(away: Errand, monkeypatch: pytest.MonkeyPatch):
    with reach(away.where.chain) as connection:
        jobs.start(connection, away.where, Command(["sleep", "60"]), away.job)
    broken = [LostConnection("the connection broke", layer="there")]

    def reach_at_last(*words: object) -> object:
        if broken:
            raise broken.pop()
        return reach(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(following, "reach", reach_at_last)
    assert stop(away).signal == 15
    assert broken == []


def test_a_last_line_without_an_end_is_told(away: Errand):
    said = io.StringIO()
    replay = Replay(Lines(said))
    replay(b"a warning\nkilled in the middle of")
    replay.end()
    replay.end()
    assert [line.split(maxsplit=1)[1] for line in said.getvalue().splitlines()] == [
        "a warning",
        "killed in the middle of",
    ]


def test_a_run_that_ended_with_0_went_well_whatever_its_log_says(away: Errand):
    with reach(away.where.chain) as connection:
        command = Command(["printf", "%s\\n", 'a progress bar: {"event": "ended", "exit_code": 0, "error": null}'])
        jobs.start(connection, away.where, command, away.job)
    job, failure = follow(away, view())
    assert (job.code, failure) == (0, None)


@pytest.mark.parametrize(
    ("names", "home"),
    [
        (["one"], {"metrics.jsonl": "one", "usage/0.jsonl": "one", "export/model": "one"}),
        (
            ["one", "two"],
            {
                "metrics-one.jsonl": "one",
                "metrics-two.jsonl": "two",
                "usage-one/0.jsonl": "one",
                "usage-two/0.jsonl": "two",
                "export-one-out/model": "one",
                "export-two-out/model": "two",
            },
        ),
    ],
)
def test_what_several_steps_of_a_kind_made_comes_home_by_their_names(
    names: list[str], home: dict[str, str], away: Errand, tmp_path: Path
):
    steps = []
    for name in names:
        train, export = f"work/train/{name}", f"work/export/{name}"
        steps.append({"name": name, "kind": "train", "status": "ok", "folder": train})
        steps.append({"name": f"{name}-out", "kind": "export", "status": "ok", "folder": export})
        for path in (f"{train}/metrics.jsonl", f"{train}/usage/0.jsonl", f"{export}/model"):
            (Path(away.root) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(away.root) / path).write_text(name)
    Path(away.folder).mkdir(parents=True)
    (Path(away.folder) / "record.json").write_text(json.dumps({"steps": steps}))
    here = tmp_path / "runs" / "r"
    fetch(away, Job(away.job, "ended", status=0), here)
    found = {path.relative_to(here).as_posix(): path.read_text() for path in here.rglob("*") if path.is_file()}
    assert {name: text for name, text in found.items() if name.startswith(("metrics", "usage", "export"))} == home


def test_by_what_an_image_was_built_is_added_to_a_record_that_comes_home(away: Errand, tmp_path: Path):
    known, tools = {"digest": f"sha256:{'d' * 64}"}, {"buildkit": "v0.25.0"}
    build = tmp_path / "build" / "train-cu130" / ("d" * 64)
    build.mkdir(parents=True)
    told = {"commit": "c" * 40, "base": {"digest": "sha256:b"}, "tools": tools}
    (build / "record.json").write_text(json.dumps(told))
    Path(away.folder).mkdir(parents=True)
    record = {"steps": [], "provenance": {"environment": {"lock": "l", "image": known}}}
    (Path(away.folder) / "record.json").write_text(json.dumps(record))
    fetch(away, Job(away.job, "ended", status=0), tmp_path / "runs" / "r")
    found = json.loads((tmp_path / "runs" / "r" / "record.json").read_text())["provenance"]["environment"]
    assert found == {"lock": "l", "image": {**known, "commit": "c" * 40, "base": "sha256:b", "builder": tools}}


def test_what_a_run_on_another_machine_runs_in_is_not_said_before_it_is_known(lab: Lab):
    record = new_record("r", lab.plan(host="ssh:gpu1"), lab.root, {"commit": "c" * 40, "dirty": False})
    assert (record["lock_id"], record["python"], record["torch"], record["commit"]) == (None, None, None, "c" * 40)
    assert new_record("r", lab.plan(), lab.root, {})["lock_id"]


def test_the_host_of_a_step_is_in_the_record(lab: Lab):
    steps = new_record("r", lab.plan("train:host=gpu1"), lab.root, {})["steps"]
    assert {step["name"]: step["host"] for step in steps if step["host"]} == {"train": "gpu1"}


def test_asking_who_holds_a_lock_refuses_nobody_and_a_lock_let_go_names_nobody(tmp_path: Path):
    (tmp_path / "work").mkdir()
    file = tmp_path / "work" / "lock"
    file.write_text(f"{os.getpid()} run-1 ann@desk\n")  # of a run that was killed; its process id is another's now
    asking = os.open(file, os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)

    def asked() -> None:
        time.sleep(0.03)
        os.close(asking)

    asker = threading.Thread(target=asked)
    asker.start()
    with lock.holding(tmp_path, "run-2"):
        assert file.read_text() == f"{os.getpid()} run-2 \n"
    asker.join()
    assert file.read_text() == ""


def test_who_is_refused_from_elsewhere_is_told_how_to_end_a_run_of_that_machine(tmp_path: Path):
    end = rf"wait for it with --wait, or end it: `kill {os.getpid()}`, there$"
    with (
        lock.holding(tmp_path, "run-1"),
        pytest.raises(BusyError, match=end),
        lock.holding(tmp_path, "run-2", "ann@desk"),
    ):
        pass
    end = r"stop it with \./inv stop run-1 where it was started, or choose another root folder with --root$"
    with lock.holding(tmp_path, "run-1", "ann@desk"), pytest.raises(BusyError, match=end), lock.holding(tmp_path, "x"):
        pass
