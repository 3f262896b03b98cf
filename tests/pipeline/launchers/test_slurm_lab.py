"""A training in a real Slurm of two nodes: the bits of threads, whatever the queue does to its job."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from dflash.errors import StepFailed, UsageError
from dflash.pipeline.launchers.config import Slurm
from dflash.pipeline.launchers.launcher import TrainingJob, launcher_for
from dflash.progress import Metric
from dflash.training.checkpoints import Checkpoints
from dflash.training.config import Topology
from dflash.training.packing import save_rows
from tests.lab import slurm as lab
from tests.training.small import CONFIG, Watching, held_out, rows, train
from tests.training.test_trainer import figures, same_bits

PAIR = replace(CONFIG, topology=Topology(1, 1), steps=6, checkpoint_every=3)
LONG = replace(PAIR, steps=150, checkpoint_every=1000)
"""Without a checkpoint of its own accord."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[lab.Slurm]:
    with lab.slurm() as running:
        yield running


@pytest.fixture
def job(tmp_path: Path, target_folder: Path) -> TrainingJob:
    """A training of two workers in `tmp_path/out`."""
    out, packed, heldout = tmp_path / "out", tmp_path / "rows.safetensors", tmp_path / "heldout.safetensors"
    out.mkdir()
    save_rows(packed, rows())
    save_rows(heldout, held_out())
    return TrainingJob(PAIR, target_folder, packed, heldout, out, tmp_path / "cache", tmp_path)


class Disturbing(Watching):
    """Does something once, at a step."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        super().__init__()
        self._step, self._act = step, act

    def update(self, done: int, total: int, metrics: Mapping[str, Metric] | None = None) -> None:
        super().update(done, total, metrics)
        if done >= self._step:
            self._step = total + 1
            self._act()


def launch(job: TrainingJob, watching: Watching | None = None, **declared: Any) -> dict[str, Any]:
    return launcher_for(Slurm(**{"nodes": 2, **declared}), {}).train(job, watching or Watching())


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory, target_folder: Path) -> Path:
    """What threads make of the long training."""
    out = tmp_path_factory.mktemp("threads")
    train(target_folder, out, topology=LONG.topology, steps=LONG.steps)
    return out


def are_the_same(one: Path, other: Path) -> bool:
    return same_bits(one, other) and figures(one) == figures(other)


def number(slurm: lab.Slurm) -> str:
    return slurm.queue()[0]


def interrupt() -> None:
    raise KeyboardInterrupt


def tasks() -> list[psutil.Process]:
    """The workers, by rank."""
    found = [
        each
        for each in psutil.process_iter(["cmdline"])
        if "dflash.training.slurmtask" in (each.info["cmdline"] or ()) and "srun" not in each.info["cmdline"][0]
    ]
    return sorted(found, key=lambda each: int(each.environ()["SLURM_PROCID"]))


@pytest.mark.nightly
def test_a_training_on_two_nodes_has_the_bits_of_threads(slurm: lab.Slurm, job: TrainingJob, tmp_path: Path):
    watching = Watching()
    result = launch(job, watching)
    assert result["step"] == 6
    assert [done for done, _ in watching.steps] == [1, 2, 3, 4, 5, 6]
    train(job.target, tmp_path / "threads", topology=PAIR.topology, steps=PAIR.steps)
    assert are_the_same(job.out, tmp_path / "threads")
    assert any("runs on n[1-2]" in note for note in watching.notes)
    assert slurm.queue() == []


@pytest.mark.nightly
def test_a_job_that_is_put_back_into_the_queue_goes_on_from_what_it_saved(
    slurm: lab.Slurm, job: TrainingJob, threads: Path
):
    watching = Disturbing(30, lambda: slurm.ask("scontrol", "requeue", number(slurm)))
    result = launch(replace(job, config=LONG), watching)
    assert result["resumed_at"] >= 30
    assert any("put back into the queue" in note for note in watching.notes)
    assert len([note for note in watching.notes if "is submitted" in note]) == 1
    assert are_the_same(job.out, threads)


@pytest.mark.nightly
def test_a_job_that_is_preempted_does_so_too(slurm: lab.Slurm, job: TrainingJob, threads: Path):
    urgent = ["srun", "--partition=urgent", "--nodes=2", "--exclusive", "--quiet", "sleep", "1"]
    with ThreadPoolExecutor() as pool:
        watching = Disturbing(30, lambda: pool.submit(slurm.ask, *urgent))
        result = launch(replace(job, config=LONG), watching, options=("--exclusive",))
    assert result["resumed_at"] >= 30
    assert are_the_same(job.out, threads)


@pytest.mark.nightly
def test_another_job_goes_on_where_one_was_told_that_its_time_is_up(slurm: lab.Slurm, job: TrainingJob, threads: Path):
    """As --signal has Slurm do before the time limit."""
    watching = Disturbing(30, lambda: slurm.ask("scancel", "--signal=USR1", number(slurm)))
    result = launch(replace(job, config=LONG), watching)
    assert result["resumed_at"] >= 30
    assert len([note for note in watching.notes if "is submitted" in note]) == 2
    assert are_the_same(job.out, threads)


@pytest.mark.nightly
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_killed_ends_the_job_and_is_named(slurm: lab.Slurm, job: TrainingJob, victim: int):
    watching = Disturbing(30, lambda: tasks()[victim].kill())
    with pytest.raises(StepFailed, match=rf"worker {victim} of job \d+ died \(Killed\)"):
        launch(replace(job, config=LONG), watching)
    assert (slurm.queue(), tasks()) == ([], [])


@pytest.mark.nightly
def test_a_job_that_a_person_cancels_is_no_success_and_is_not_submitted_again(slurm: lab.Slurm, job: TrainingJob):
    watching = Disturbing(30, lambda: slurm.ask("scancel", number(slurm)))
    with pytest.raises(StepFailed, match=r"job \d+ was cancelled, not by this run"):
        launch(replace(job, config=LONG), watching)
    assert slurm.queue() == []
    assert Checkpoints(job.out / "scratch" / "checkpoints").latest(Watching())


@pytest.mark.nightly
def test_a_step_that_is_stopped_has_its_job_save_and_leaves_none(slurm: lab.Slurm, job: TrainingJob):
    with pytest.raises(KeyboardInterrupt):
        launch(replace(job, config=LONG), Disturbing(30, interrupt))
    assert (slurm.queue(), tasks()) == ([], [])
    saved = Checkpoints(job.out / "scratch" / "checkpoints").latest(Watching())
    assert saved
    assert 30 <= saved.step < 150


def test_a_step_that_is_stopped_while_its_job_waits_takes_it_out_of_the_queue(slurm: lab.Slurm, job: TrainingJob):
    class Impatient(Watching):
        def note(self, message: str) -> None:
            super().note(message)
            if "waits" in message:
                raise KeyboardInterrupt

    watching = Impatient()
    with pytest.raises(KeyboardInterrupt):
        launch(job, watching, options=("--hold",))
    assert any("waits: JobHeldUser" in note for note in watching.notes)
    assert slurm.queue() == []


STEP = """
import sys
from pathlib import Path
from tests.pipeline.launchers import test_slurm_lab as lab
from dflash.pipeline.launchers.launcher import TrainingJob
target, root = map(Path, sys.argv[1:])
job = TrainingJob(lab.LONG, target, root / "rows.safetensors", root / "heldout.safetensors", root / "out", root, root)
lab.launch(job, lab.Disturbing(3, lambda: print("training", flush=True)))
"""


@pytest.mark.nightly
def test_the_job_of_a_step_that_was_killed_is_followed_on(
    slurm: lab.Slurm, job: TrainingJob, threads: Path, tmp_path: Path
):
    command = [sys.executable, "-c", STEP, str(job.target), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == "training\n"
        step.kill()
    before, watching = number(slurm), Watching()
    result = launch(replace(job, config=LONG), watching)
    assert f"job {before} is there already" in watching.notes
    assert (result["step"], result["resumed_at"]) == (150, 0)
    assert are_the_same(job.out, threads)


@pytest.mark.nightly
def test_a_folder_that_a_node_does_not_see_is_said_to_be_the_fault(slurm: lab.Slurm, job: TrainingJob):
    out = slurm.unshared / "out"
    out.mkdir()
    with pytest.raises(UsageError, match=r"workers 1 of job .* have written nothing: their nodes do not see this"):
        launch(replace(job, out=out))
    shutil.rmtree(out)


def test_what_slurm_refuses_is_one_line(slurm: lab.Slurm, job: TrainingJob):
    with pytest.raises(UsageError, match=r"Slurm refuses the job: sbatch: error: .*[Ii]nvalid partition name"):
        launch(job, partition="nowhere")
    assert slurm.queue() == []
