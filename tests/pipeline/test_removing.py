"""Runs go when they are named, and only then; nothing goes that another run has."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dflash.errors import BusyError, DataError, UsageError
from dflash.pipeline import lock
from dflash.pipeline.errand import Errand
from dflash.pipeline.record import runs
from dflash.pipeline.removing import left_there, plan_removal, remove
from tests.pipeline.report.sample import OLD
from tests.test_tasks import inv

A, B = "20261101T000000-a", "20261102T000000-b"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two runs, which share their target and have a training each."""
    for run in (A, B):
        steps = [
            {"name": kind, "kind": kind, "status": "ok", "folder": folder, "seconds": 1.0, "result": None}
            for kind, folder in (("target", "work/target/0123"), ("train", f"work/train/{run[-1]}"))
        ]
        folder = tmp_path / "runs" / run
        (folder / "logs").mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps({**OLD, "id": run, "steps": steps}))
        (folder / "logs" / "train.log").write_text("it trained\n")
        for step in steps:
            made = tmp_path / str(step["folder"])
            made.mkdir(parents=True, exist_ok=True)
            (made / "done.json").write_text("{}")
            (made / "model").write_bytes(bytes(20_000))
    return tmp_path


def test_a_run_goes_and_what_its_steps_made_stays(root: Path):
    found = plan_removal(root, [A], outputs=False)
    assert [(each.what, each.folder.name) for each in found] == [("run", A)]
    remove(root, found)
    assert runs(root) == [B]
    assert (root / "work/train/a/done.json").exists()


def test_outputs_go_too_but_those_that_another_run_has(root: Path):
    remove(root, plan_removal(root, [A], outputs=True))
    assert not (root / "work/train/a").exists()
    assert (root / "work/target/0123/model").exists()
    remove(root, plan_removal(root, [B], outputs=True))
    assert runs(root) == []
    assert not (root / "work/target/0123").exists()


def test_what_runs_share_goes_once_with_the_last_of_them(root: Path):
    found = plan_removal(root, [A, B, A], outputs=True)
    names = [each.folder.relative_to(root).as_posix() for each in found]
    assert names == ["work/target/0123", "work/train/a", f"runs/{A}", "work/train/b", f"runs/{B}"]
    assert all(each.bytes >= 20_000 for each in found if each.what != "run")


def test_a_run_that_is_not_there_takes_no_other_with_it(root: Path):
    with pytest.raises(UsageError, match="there is no run 'c'"):
        plan_removal(root, [A, "c"], outputs=False)
    with pytest.raises(UsageError, match=r"there is no run '\.\./runs'"):
        plan_removal(root, ["../runs"], outputs=True)


def test_a_run_at_work_stays_and_so_does_what_it_may_use(root: Path):
    with lock.holding(root, A):
        with pytest.raises(BusyError, match=rf"run {A} is at work \(process {os.getpid()}\)"):
            plan_removal(root, [A], outputs=False)
        with pytest.raises(BusyError, match="is at work here"):
            remove(root, plan_removal(root, [B], outputs=True))
        assert (root / "work/train/b/done.json").exists()
        remove(root, plan_removal(root, [B], outputs=False))
    assert runs(root) == [A]


@pytest.mark.parametrize(
    ("pin", "says"),
    [
        (f"vault/pins/{A}", f"a compile cache is kept for run {A}; .*--for-run {A} --release"),
        (f"envs/train/pins/{A}", f"a generation of train is kept for run {A}; .*env.pin train"),
    ],
)
def test_a_run_that_something_is_kept_for_stays(root: Path, monkeypatch: pytest.MonkeyPatch, pin: str, says: str):
    monkeypatch.delenv("DFLASH_VAULT", raising=False)
    (root / pin).parent.mkdir(parents=True)
    (root / pin).write_text("0123")
    with pytest.raises(BusyError, match=says):
        plan_removal(root, [A], outputs=False)


def test_what_a_host_keeps_of_a_run_that_failed_there_is_told(root: Path):
    assert left_there(root, A) == ""
    errand = Errand(
        run=A,
        host="gpu1",
        chain="ssh:gpu1",
        root="/data",
        job="j",
        environment="train",
        generation="0123",
        python="python",
        source="/data/source",
        request={"known": {"predecessor": {"run": B, "how": "replayed"}}},
        started="2026-11-01T00:00:00Z",
        first=A,
    )
    replace(errand, ended={"code": 1}).write(root / "runs" / A)
    told = left_there(root, A)
    assert told.startswith(f"gpu1 still has /data/runs/{A}")
    assert told.endswith(f"./inv env.pin train --host gpu1 --for-run {A} --release")
    replace(errand, ended={"code": 0}).write(root / "runs" / A)
    assert left_there(root, A) == ""
    errand.write(root / "runs" / A)
    record = json.loads((root / "runs" / A / "record.json").read_text())
    (root / "runs" / A / "record.json").write_text(json.dumps({**record, "status": "running"}))
    with pytest.raises(BusyError, match=f"run {B} is needed by run {A}"):
        plan_removal(root, [B], outputs=False)


def test_outputs_stay_while_a_record_can_not_say_what_its_run_has(root: Path):
    (root / "runs" / B / "record.json").write_text("{")
    with pytest.raises(DataError, match="leave out --outputs"):
        plan_removal(root, [A], outputs=True)
    remove(root, plan_removal(root, [A, B], outputs=False))
    assert runs(root) == []


def test_an_output_that_another_run_has_come_to_have_meanwhile_stays(root: Path):
    found = plan_removal(root, [A], outputs=True)
    record = json.loads((root / "runs" / B / "record.json").read_text())
    record["steps"][1]["folder"] = "work/train/a"
    (root / "runs" / B / "record.json").write_text(json.dumps(record))
    assert [each.what for each in remove(root, found)] == ["run"]
    assert (root / "work/train/a/done.json").exists()
    assert runs(root) == [B]


def test_what_was_moved_aside_for_an_output_goes_with_it(root: Path):
    aside = root / "work/train/a.replaced-1"
    aside.mkdir()
    (aside / "model").write_bytes(bytes(20_000))
    found = plan_removal(root, [A], outputs=True)
    assert [each.what for each in found] == ["output of train", "replaced output of train", "run"]
    remove(root, found)
    assert not aside.exists()


def test_of_an_output_that_is_a_link_only_the_link_goes(root: Path):
    (root / "work/train/a").rename(root / "larger")
    (root / "work/train/a").symlink_to(root / "larger")
    found = plan_removal(root, [A], outputs=True)
    assert (found[0].what, found[0].bytes) == ("link to output of train", 0)
    remove(root, found)
    assert not (root / "work/train/a").is_symlink()
    assert {each.name for each in (root / "larger").iterdir()} == {"done.json", "model"}
    assert runs(root) == [B]


def test_an_output_that_a_host_still_works_on_stays_and_so_does_its_run(root: Path):
    note = root / "work/train/a/scratch/elsewhere.json"
    note.parent.mkdir()
    note.write_text("{}")
    (root / "work/train/a/done.json").unlink()
    with pytest.raises(BusyError, match=rf"a host has, or works on, .*; ./inv resume {A} brings it here"):
        plan_removal(root, [A], outputs=True)
    remove(root, plan_removal(root, [A], outputs=False))
    assert note.exists()


def test_an_output_of_a_job_that_is_in_slurm_s_queue_stays(root: Path, monkeypatch: pytest.MonkeyPatch):
    (root / "bin").mkdir()
    for name, says in (("sbatch", ""), ("squeue", "77 RUNNING")):
        (root / "bin" / name).write_text(f"#!/bin/sh\necho {says}\n")
        (root / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{root / 'bin'}:{os.environ['PATH']}")
    (root / "work/train/a/scratch/slurm").mkdir(parents=True)
    assert plan_removal(root, [A], outputs=True)
    (root / "work/train/a/done.json").unlink()
    with pytest.raises(BusyError, match=r"job 77 is at work on it; .*scancel 77 ends it"):
        plan_removal(root, [A], outputs=True)


def test_a_run_that_is_being_done_again_stays(root: Path):
    record = json.loads((root / "runs" / B / "record.json").read_text())
    record |= {"status": "running", "provenance": {"predecessor": {"run": A, "how": "replayed"}}}
    (root / "runs" / B / "record.json").write_text(json.dumps(record))
    with lock.holding(root, B), pytest.raises(BusyError, match=f"run {A} is needed by run {B}, which is at work"):
        plan_removal(root, [A], outputs=False)
    remove(root, plan_removal(root, [A], outputs=False))
    assert runs(root) == [B]


def test_what_a_killed_removal_left_goes_with_the_next(root: Path):
    (root / "work/train/a/done.json").unlink()
    (root / "runs" / A / "logs" / "train.log").unlink()
    remove(root, plan_removal(root, [A], outputs=True))
    assert not (root / "work/train/a").exists()
    assert runs(root) == [B]


def test_a_link_out_of_a_run_is_not_followed(root: Path):
    kept = root / "kept"
    kept.mkdir()
    (kept / "file").write_text("mine")
    (root / "runs" / A / "export").symlink_to(kept)
    remove(root, plan_removal(root, [A], outputs=False))
    assert (kept / "file").read_text() == "mine"


def test_the_verb_names_what_goes_and_takes_several(root: Path):
    none = inv("runs", "--status", "failed", "--root", str(root), look=True)
    assert none.stdout == "no run is failed; ./inv runs lists all 2\n"
    shown = inv("rm", A, B, "--outputs", "--plan", "--root", str(root), look=True)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[-1].endswith("MB; nothing was deleted")
    assert runs(root) == [A, B]
    done = inv("rm", A, B, "--root", str(root))
    assert done.returncode == 0, done.stderr
    assert runs(root) == []
    assert (
        inv("rm", "--root", str(root)).stderr
        == "error: no run is named; name one or more: ./inv rm RUN; ./inv runs lists them\n"
    )
