"""What a job is submitted with, and what Slurm's answers, recorded from its version 22.05, are read as."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash.errors import DFlashError, OutOfMemory, StepFailed, UsageError
from dflash.pipeline.launchers import slurm
from dflash.pipeline.launchers.config import Slurm, from_json, to_json
from dflash.pipeline.launchers.launcher import TrainingJob, launcher_for
from dflash.pipeline.launchers.slurm import RankLogs, failure_of, name_of
from dflash.pipeline.launchers.slurmqueue import (
    Death,
    Job,
    accounted,
    environment,
    first_death,
    shown,
    submission,
    workers_per_node,
)
from dflash.training.config import Topology, TrainConfig
from dflash.training.slurmtask import is_newest, place
from tests.training.small import Watching

DATA = Path(__file__).parents[2] / "data" / "slurm"


def submitted(declared: Slurm, folder: str = "/shared/out", **config: object) -> list[str]:
    return submission(declared, "name", TrainConfig(**config), Path(folder), ["python", "worker"], Path("/shared/stop"))


def test_a_job_has_a_task_for_each_worker_and_a_log_for_each_task():
    words = submitted(Slurm(nodes=2, partition="gpu"))
    script = words.index("/shared/out/job.sh")
    assert {"--nodes=2", "--ntasks-per-node=4", "--partition=gpu", "--requeue"} <= set(words[:script])
    assert "--output=/shared/out/%j-%t.log" in words[script:]
    assert words[script + 1] == "/shared/stop"
    assert words[-2:] == ["python", "worker"]
    assert not [word for word in words if word.startswith("--gpus")]


def test_workers_on_gpus_have_one_each_of_the_type_that_is_named():
    assert "--gpus-per-node=8" in submitted(Slurm(), device="cuda")
    assert "--gpus-per-node=h200:4" in submitted(Slurm(nodes=2, gpu_type="h200"), device="cuda")


def test_what_is_declared_is_said_and_what_is_left_out_is_not():
    words = submitted(Slurm(account="a", qos="q", constraint="c", time_limit="1-00:00:00", memory="0", save_s=300))
    assert {"--account=a", "--qos=q", "--constraint=c", "--time=1-00:00:00", "--mem=0"} <= set(words)
    assert "--signal=USR1@300" in words
    assert not [word for word in submitted(Slurm()) if word.startswith(("--account", "--time", "--mem"))]


def test_a_percent_of_the_folders_own_is_no_pattern():
    assert "--output=/100%%/out/%j-%t.log" in submitted(Slurm(), "/100%/out")


def test_workers_that_nodes_can_not_share_evenly_are_refused():
    with pytest.raises(UsageError, match="8 workers can not be shared out evenly over 3 nodes"):
        workers_per_node(Slurm(nodes=3), Topology(5, 3))
    with pytest.raises(UsageError, match="over 2 nodes, with the 4 of each target on one"):
        workers_per_node(Slurm(nodes=2), Topology(2, 4, target_gpus=4))
    assert workers_per_node(Slurm(nodes=2), Topology(1, 4, target_gpus=4)) == 4


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"options": ("--wrap=reboot",)}, "--wrap is for the launcher to set"),
        ({"options": ("-p gpu",)}, 'an option is one word that begins with "--"'),
        ({"time_limit": "two days"}, "time_limit is as Slurm has it"),
        ({"nodes": 0}, "must be at least 1"),
        ({"save_s": 0}, "save_s is from 1 to 65535"),
    ],
)
def test_a_declaration_that_can_not_be_followed_is_refused(fields: dict, said: str):
    with pytest.raises(ValueError, match=said):
        Slurm(**fields)


def test_a_declaration_travels_to_the_step_as_it_is():
    declared = Slurm(nodes=2, options=("--reservation=night",))
    assert from_json(to_json(declared)) == declared


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("held", Job("PENDING", "JobHeldUser")),
        ("running", Job("RUNNING", nodes="n[1-2]")),
        ("requeued", Job("PENDING", "BeginTime", restarts=1)),
        ("completing", Job("COMPLETING", restarts=1, nodes="n[1-2]")),
        ("failed", Job("FAILED", "NonZeroExitCode", nodes="n[1-2]")),
        ("cancelled", Job("CANCELLED", nodes="n[1-2]")),
        ("completed", Job("COMPLETED", nodes="n[1-2]")),
    ],
)
def test_a_job_is_read_as_scontrol_shows_it(name: str, job: Job):
    assert shown((DATA / f"{name}.txt").read_text()) == job
    assert job.has_ended == (name in ("failed", "cancelled", "completed"))


def test_what_is_no_job_is_not_read_as_one():
    with pytest.raises(ValueError, match="this is no job"):
        shown("slurm_load_jobs error: Unable to contact slurm controller")


def test_accounting_names_who_cancelled_a_job_and_says_nothing_of_one_that_it_does_not_know():
    """As sacct(1) has it: the lab has no accounting."""
    assert accounted("CANCELLED by 1000\n") == Job("CANCELLED")
    assert accounted("OUT_OF_MEMORY\n") == Job("OUT_OF_MEMORY")
    assert accounted("") is None


@pytest.mark.parametrize(
    ("name", "death"),
    [
        ("killed", Death(2, "Killed")),
        ("exited", Death(2, "Exited with exit code 7")),
        ("told", Death(0, "Exited with exit code 130")),
        ("unseen", Death(1, "launch failed: Slurmd could not connect IO")),
        ("restarted", None),
    ],
)
def test_the_worker_that_ended_badly_first_is_found_in_what_srun_says(name: str, death: Death | None):
    """Of the last start alone: a job that was put back has said more."""
    assert first_death((DATA / f"srun-{name}.txt").read_text()) == death


def test_a_task_has_the_place_that_torchrun_would_give_it():
    slurm = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "SLURM_NNODES": "2"}
    slurm |= {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7", "SLURM_JOB_ID": "20017"}
    assert place(slurm) == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": "12017",
    }


def test_an_allocation_that_the_run_is_in_gives_no_options():
    around = {"SLURM_NTASKS": "1", "SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "a", "HOME": "/root"}
    assert environment(around, {}) == {"SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "a", "HOME": "/root"}


def test_a_job_is_given_what_it_needs_and_the_steps_own_and_no_secrets():
    """Slurm keeps a job's environment in files."""
    needed = {"NCCL_DEBUG": "INFO", "TORCHINDUCTOR_CACHE_DIR": "/c", "HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}
    secret = {"HF_TOKEN": "t", "PUSH_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "t", "DATABASE_URL": "postgres://me:t@db"}
    assert environment(needed | secret | {"HF_ENDPOINT": "https://me:t@hub"}, {"MY_SWITCH": "on"}) == {
        **needed,
        **{"HF_ENDPOINT": "https://hub", "MY_SWITCH": "on"},
    }


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts scripts in the place of Slurm's programs."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "_ASKS_AT_THE_END_S", 0.01)

    def play(**programs: str) -> None:
        for name, text in {"scancel": "exit 0", "squeue": "exit 0", "sbatch": "echo 18", **programs}.items():
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{text}\n")
            (tmp_path / "bin" / name).chmod(0o755)

    return play


def launch(folder: Path, notes: Watching) -> dict[str, Any]:
    (folder / "out").mkdir(exist_ok=True)
    job = TrainingJob(TrainConfig(topology=Topology(1, 1)), folder, folder, folder, folder / "out", folder, folder)
    return launcher_for(Slurm(), {}).train(job, notes)


def log_of(folder: Path, rank: int, *said: dict[str, Any]) -> None:
    path = folder / "out" / "scratch" / "slurm" / f"18-{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in said))


RESULT = {"dflash": "result", "result": {"step": 6}}
FAILURE = {"dflash": "failure", "class": "StorageError", "what": "no room", "where": "/x", "cure": "free some"}


def test_a_job_that_is_just_ending_is_waited_for_and_not_followed(tmp_path: Path, play: Callable[..., None]):
    ends = "test -e ended || echo 17 COMPLETING; touch ended"
    play(squeue=ends, scontrol='echo "JobId=18 JobState=COMPLETED Restarts=0"')
    log_of(tmp_path, 0, RESULT)
    log_of(tmp_path, 1)
    notes = Watching()
    assert launch(tmp_path, notes) == {"step": 6}
    assert notes.notes == ["job 17 is just ending: that is waited for", "job 18 is submitted"]


def test_a_job_that_is_put_back_while_it_ends_is_followed(tmp_path: Path, play: Callable[..., None]):
    waits = "if test -e back; then echo 18 PENDING; else echo 18 COMPLETING; fi; touch back"
    play(squeue=waits, sbatch="exit 1", scontrol='echo "JobId=18 JobState=COMPLETED Restarts=1"')
    log_of(tmp_path, 0, RESULT)
    notes = Watching()
    assert launch(tmp_path, notes) == {"step": 6}
    assert notes.notes[:2] == ["job 18 is just ending: that is waited for", "job 18 is there already"]


@pytest.mark.parametrize("first", ["n1: task 0: Exited with exit code 1", "n1: task 0: Aborted (core dumped)"])
def test_a_worker_that_dies_of_the_end_of_one_that_was_told_to_is_no_failure(
    tmp_path: Path, play: Callable[..., None], first: str
):
    """Whichever of them srun hears of first."""
    ended = 'test "$4" = 18 && echo "JobId=18 JobState=FAILED" || echo "JobId=19 JobState=COMPLETED"'
    play(sbatch="if test -e sent; then echo 19; else echo 18; fi; touch sent", scontrol=ended)
    log_of(tmp_path, 0, {"dflash": "update", "done": 1, "total": 6, "metrics": {}})
    log_of(tmp_path, 1)
    folder = tmp_path / "out" / "scratch" / "slurm"
    srun = f"dflash: the job starts\nsrun: error: {first}\nsrun: error: n2: task 1: Exited with exit code 130\n"
    (folder / "18.log").write_text(srun)
    (folder / "19-0.log").write_text(json.dumps(RESULT) + "\n")
    notes = Watching()
    assert launch(tmp_path, notes) == {"step": 6}
    assert "job 18 was told to end by Slurm, and has saved what it had" in notes.notes


def test_what_was_told_before_a_job_was_put_back_does_not_count(tmp_path: Path, play: Callable[..., None]):
    play(scontrol='echo "JobId=18 JobState=COMPLETED Restarts=1"')
    log_of(tmp_path, 0, FAILURE, RESULT)
    assert launch(tmp_path, Watching()) == {"step": 6}
    back = 'if test -e back; then echo "JobId=18 JobState=CANCELLED Restarts=1"; else touch back; '
    play(scontrol=back + 'echo "JobId=18 JobState=RUNNING Restarts=0"; fi')
    log_of(tmp_path, 0, FAILURE)
    with pytest.raises(StepFailed, match="job 18 was cancelled, not by this run"):
        launch(tmp_path, Watching())


def test_the_logs_of_workers_are_one_of_whole_lines_with_their_ranks(tmp_path: Path):
    logs = RankLogs(tmp_path, "17", 3)
    (tmp_path / "17-0.log").write_text("one\ntw")
    assert list(logs.new()) == [(0, "one")]
    (tmp_path / "17-0.log").write_text("one\ntwo\n")
    (tmp_path / "17-2.log").write_text('{"dflash": "note"}\nlast words\n')
    assert list(logs.new()) == [(0, "two"), (2, '{"dflash": "note"}'), (2, "last words")]
    assert (logs.last(2), logs.missing()) == (["last words"], [1])


@pytest.mark.parametrize(
    ("state", "srun", "kind", "status", "said"),
    [
        ("OUT_OF_MEMORY", "killed", OutOfMemory, 10, "n1: memory of job 17 ran out on a node; ask for more"),
        ("FAILED", "memory", OutOfMemory, 10, "n1: memory of job 17 ran out on a node; ask for more"),
        ("TIMEOUT", "killed", StepFailed, 124, "the time of job 17 was up before it had saved; give it more"),
        ("FAILED", "told", StepFailed, 1, "job 17 was told to end before its first step; give it more time"),
        ("NODE_FAIL", "restarted", StepFailed, 255, r"job 17 is gone \(NODE_FAIL\); run again"),
        ("FAILED", "node", StepFailed, 255, r"job 17 has lost a node \(Node failure on n2\); run again"),
        ("FAILED", "rebooted", StepFailed, 255, r"job 17 has lost a node \(.* missing step on node 1\); run again"),
        ("CANCELLED", "told", StepFailed, 1, "job 17 was cancelled, not by this run"),
        ("CANCELLED", "unseen", StepFailed, 1, r"worker 1 of job 17 died \(launch failed: .*\): it said nothing"),
        ("FAILED", "exited", StepFailed, 1, r"worker 2 of job 17 died \(Exited with exit code 7\): last words; run"),
        ("FAILED", "restarted", StepFailed, 1, "job 17 ended as FAILED: dflash: the job starts"),
    ],
)
def test_how_a_job_ended_is_said_with_a_status_that_tells_whether_to_try_again(
    tmp_path: Path, state: str, srun: str, kind: type[DFlashError], status: int, said: str
):
    """255 is a lost machine to the runner. Not all can be had in the lab, which has no accounting."""
    (tmp_path / "17.log").write_text((DATA / f"srun-{srun}.txt").read_text())
    for rank in range(4):
        (tmp_path / f"17-{rank}.log").write_text("last words\n" if rank == 2 else "")
    logs = RankLogs(tmp_path, "17", 4)
    assert list(logs.new()) == [(2, "last words")]
    failure = failure_of("17", Job(state, nodes="n1"), logs)
    assert type(failure) is kind
    assert getattr(failure, "status", failure.exit_code) == status
    assert getattr(failure, "reason", None) == {124: "timeout", 255: "lost"}.get(status)
    assert re.match(said, str(failure))


def test_a_worker_that_is_told_to_end_before_it_can_listen_is_no_crash(tmp_path: Path):
    (tmp_path / "17.log").write_text("dflash: the job starts\nsrun: error: n2: task 1: User defined signal 1\n")
    for rank in range(2):
        (tmp_path / f"17-{rank}.log").touch()
    failure = failure_of("17", Job("FAILED"), RankLogs(tmp_path, "17", 2))
    assert "job 17 was told to end before its first step; give it more time" in str(failure)
    crashed = "dflash: the job starts\nsrun: error: n1: task 0: Segmentation fault (core dumped)\n"
    (tmp_path / "17.log").write_text(f"{crashed}srun: error: n2: task 1: Exited with exit code 130\n")
    failure = failure_of("17", Job("FAILED"), RankLogs(tmp_path, "17", 2))
    assert "before its first step; worker 0 died (Segmentation fault (core dumped)); give it" in str(failure)


def test_workers_whose_files_are_missing_are_on_nodes_that_do_not_see_the_folder(tmp_path: Path):
    (tmp_path / "17.log").write_text((DATA / "srun-unseen.txt").read_text())
    (tmp_path / "17-0.log").touch()
    failure = failure_of("17", Job("CANCELLED"), RankLogs(tmp_path, "17", 2))
    assert isinstance(failure, UsageError)
    assert "workers 1 of job 17 have written nothing: their nodes do not see this" in str(failure)


def test_the_jobs_of_a_step_are_found_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert name_of(Path("out")) == name_of(tmp_path / "out") != name_of(tmp_path / "other")


@pytest.mark.parametrize(
    ("written", "newest"),
    [
        ("17 1\n", True),
        ("17 2\n", False),
        ("18 0\n", False),
        ("9 4\n", True),
        ("17 0\n", True),
        ("", True),
        (None, True),
    ],
)
def test_a_worker_knows_when_another_start_has_been_made_and_takes_no_older_one_for_it(
    tmp_path: Path, written: str | None, newest: bool
):
    if written is not None:
        (tmp_path / "start").write_text(written)
    assert is_newest(tmp_path / "start", {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "1"}) is newest
