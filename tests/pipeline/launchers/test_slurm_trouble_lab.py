"""A training in a real Slurm that takes from it what it needs: time, nodes, memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dflash.errors import OutOfMemory, StepFailed
from dflash.pipeline.launchers.launcher import TrainingJob
from dflash.training.slurmtask import START
from tests.lab import slurm as lab
from tests.lab.service import need_cgroup
from tests.pipeline.launchers.test_slurm_lab import (  # noqa: F401 - fixtures
    LONG,
    Disturbing,
    are_the_same,
    job,
    launch,
    slurm,
    tasks,
    threads,
)


def said_by_workers(job: TrainingJob) -> str:  # noqa: F811
    """What the workers of a step wrote."""
    logs = (job.out / "scratch" / "slurm").glob("*-*.log")
    return "".join(log.read_text() for log in logs)


SAVING = replace(LONG, checkpoint_every=10)


def said_by_jobs(job: TrainingJob) -> str:  # noqa: F811
    """What the jobs of a step wrote themselves."""
    logs = (job.out / "scratch" / "slurm").glob("*.log")
    return "".join(log.read_text() for log in logs if log.stem.isdigit())


@pytest.mark.nightly
def test_a_job_saves_before_its_time_is_up_and_another_goes_on_to_the_same_bits(
    slurm: lab.Slurm,  # noqa: F811
    job: TrainingJob,  # noqa: F811
    threads: Path,  # noqa: F811
):
    """Its drafter does nothing until Slurm wakes it, to tell it that its time is nearly up."""
    watching = Disturbing(30, lambda: tasks()[1].suspend())
    result = launch(replace(job, config=LONG), watching, time_limit="1", save_s=30)
    assert result["resumed_at"] >= 30
    assert any("was told to end by Slurm, and has saved what it had" in note for note in watching.notes)
    assert len([note for note in watching.notes if "is submitted" in note]) == 2
    assert "DUE TO TIME LIMIT" not in said_by_jobs(job)
    assert are_the_same(job.out, threads)
    assert slurm.queue() == []


@pytest.mark.nightly
def test_a_job_that_can_not_save_in_time_says_so_and_the_next_goes_on_from_its_last_checkpoint(
    slurm: lab.Slurm,  # noqa: F811
    job: TrainingJob,  # noqa: F811
    threads: Path,  # noqa: F811
):
    """A worker that waits for a disk hears no signal."""
    need_cgroup("freezer")
    saving = replace(job, config=SAVING)
    with ThreadPoolExecutor() as pool:

        def stick() -> None:
            pool.submit(lab.freeze, tasks()[1].pid)

        with pytest.raises(StepFailed, match=r"the time of job \d+ was up before it had saved; give it more") as failed:
            launch(saving, Disturbing(30, stick), time_limit="1", save_s=1)
    assert (failed.value.status, failed.value.reason) == (124, "timeout")
    assert "DUE TO TIME LIMIT" in said_by_jobs(job)
    assert (slurm.queue(), tasks()) == ([], [])
    assert launch(saving)["resumed_at"] >= 30
    assert are_the_same(job.out, threads)


@pytest.mark.nightly
@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_job_whose_node_falls_silent_is_put_back_and_goes_on_from_its_last_checkpoint(
    slurm: lab.Slurm,  # noqa: F811
    job: TrainingJob,  # noqa: F811
    threads: Path,  # noqa: F811
    node: str,
):
    """The one with the job's script, and another; it is back when Slurm has noticed."""

    def boot() -> None:
        lab.wait_until(lambda: slurm.state(node).startswith("down"), f"the end of {node}", 120)
        slurm.boot(node)

    with ThreadPoolExecutor() as pool:

        def fail() -> None:
            slurm.cut_power(node)
            pool.submit(boot)

        watching = Disturbing(30, fail)
        result = launch(replace(job, config=SAVING), watching)
    assert result["resumed_at"] >= 30
    assert any("put back into the queue" in note for note in watching.notes)
    assert len([note for note in watching.notes if "is submitted" in note]) == 1
    assert are_the_same(job.out, threads)
    assert slurm.queue() == []


@pytest.mark.nightly
def test_workers_that_live_on_where_slurm_sees_no_node_end_before_they_write_into_the_next_starts_training(
    slurm: lab.Slurm,  # noqa: F811
    job: TrainingJob,  # noqa: F811
    threads: Path,  # noqa: F811
):
    """The node's slurmd is gone, and its drafter stands still until the job has begun anew on the other node."""
    start = job.out / "scratch" / "slurm" / START
    left: list[psutil.Process] = []

    def wake() -> None:
        lab.wait_until(lambda: start.read_text().endswith(" 1\n"), "the next start", 120)
        for each in left:
            each.resume()
        psutil.wait_procs(left, 30)

    with ThreadPoolExecutor() as pool:

        def lose() -> None:
            (node,) = [name for name in ("n1", "n2") if slurm.state(name).startswith(("alloc", "mix"))]
            left.extend(tasks())
            for each in left:
                each.suspend()
            slurm.nodes[node].kill()
            slurm.nodes[node].wait(10)
            pool.submit(wake)

        result = launch(replace(job, config=SAVING), Disturbing(30, lose), nodes=1)
    assert result["resumed_at"] >= 30
    assert not any(each.is_running() for each in left)
    assert "Slurm has started this training elsewhere: this worker ends" in said_by_workers(job)
    assert are_the_same(job.out, threads)
    lost = [node for node, process in slurm.nodes.items() if process.poll() is not None]
    for node in lost:
        slurm.start(node)
    lab.wait_until(lambda: all(slurm.state(node) == "idle" for node in lost), "the node", 60)


@pytest.mark.nightly
def test_a_node_that_starts_anew_before_slurm_misses_it_is_a_lost_machine_and_the_next_job_goes_on(
    slurm: lab.Slurm,  # noqa: F811
    job: TrainingJob,  # noqa: F811
    threads: Path,  # noqa: F811
):
    saving = replace(job, config=SAVING)
    with pytest.raises(StepFailed, match=r"job \d+ has lost a node .*; run again to go on") as failed:
        launch(saving, Disturbing(30, lambda: slurm.boot("n2")))
    assert failed.value.reason == "lost"
    assert launch(saving)["resumed_at"] >= 30
    assert are_the_same(job.out, threads)


@pytest.mark.nightly
def test_a_job_that_needs_more_memory_than_it_asked_for_is_told_so(job: TrainingJob):  # noqa: F811
    with (
        lab.slurm(constrained=True),
        pytest.raises(OutOfMemory, match=r"n1: memory of job \d+ ran out on a node; ask for more"),
    ):
        launch(job, nodes=1, memory="150M")
    assert tasks() == []
