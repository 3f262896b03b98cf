"""Workers on several hosts that share no folder train what threads train; none outlives another, and nothing is lost.

The hosts are this machine, each with a root of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dflash.errors import StepFailed
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.pipeline.keys import HOME
from dflash.pipeline.launchers.config import Torchrun
from dflash.pipeline.launchers.launcher import TrainingJob, launcher_for
from dflash.progress import Metric
from dflash.training.config import Topology, TrainConfig
from dflash.training.packing import save_rows
from tests.lab.service import free_port
from tests.training.small import CONFIG, Watching, held_out, rows, train
from tests.training.test_trainer import figures, same_bits
from tests.training.test_usage import all_of, steps_of

SMALL = replace(CONFIG, topology=Topology(1, 1), steps=6, checkpoint_every=3)


def job_of(tmp_path: Path, target: Path, config: TrainConfig = SMALL) -> TrainingJob:
    """A training whose step's folder is in the root of the run's machine."""
    root = tmp_path / "run"
    out = root / "work" / "train" / "k"
    out.mkdir(parents=True, exist_ok=True)
    packed, heldout = root / "rows.safetensors", root / "heldout.safetensors"
    if not packed.exists():
        save_rows(packed, rows())
        save_rows(heldout, held_out())
    return TrainingJob(config, target, packed, heldout, out, root / "inductor", root)


def launch(job: TrainingJob, names: tuple[str, ...], watching: Watching | None = None) -> dict:
    """Train on hosts, of which `run` is the run's own machine."""
    hosts = {name: Host(name, parse_chain("local"), str(job.root.parent / name)) for name in names}
    return launcher_for(Torchrun(names, free_port()), hosts).train(job, watching or Watching())


def in_threads(tmp_path: Path, target: Path, config: TrainConfig) -> Path:
    train(target, tmp_path / "threads", **{name: getattr(config, name) for name in ("topology", "steps")})
    return tmp_path / "threads"


def workers(root: Path) -> list[psutil.Process]:
    """What runs of a training below `root`, detached too."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if any(str(root) in word for word in words) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.nightly
def test_two_hosts_train_to_the_bits_of_threads_and_what_they_made_comes_home(target_folder: Path, tmp_path: Path):
    job, watching = job_of(tmp_path, target_folder), Watching()
    result = launch(job, ("run", "other"), watching)
    assert result["step"] == 6
    assert [done for done, _ in watching.steps] == [1, 2, 3, 4, 5, 6]
    threads = in_threads(tmp_path, target_folder, SMALL)
    assert same_bits(job.out, threads)
    assert figures(job.out) == figures(threads)
    assert (job.out / "draft" / "model.safetensors").exists()
    assert steps_of(job.out) == all_of(2, 6)
    assert workers(tmp_path) == []
    assert [each.name for each in (tmp_path / "other").glob("hosted/*/*")] == ["k.lock"]


class Disturbing(Watching):
    """Does something once, at a step."""

    def __init__(self, step: int, act: Callable[[], None]) -> None:
        super().__init__()
        self._step, self._act = step, act

    def update(self, done: int, total: int, metrics: Mapping[str, Metric] | None = None) -> None:
        super().update(done, total, metrics)
        if done == self._step:
            self._act()


@pytest.mark.nightly
def test_a_worker_that_is_killed_ends_all_is_named_and_threads_go_on_with_what_came_home(
    target_folder: Path, tmp_path: Path
):
    job = job_of(tmp_path, target_folder, replace(SMALL, topology=Topology(1, 2), steps=60, checkpoint_every=10))

    def kill() -> None:
        (victim,) = [each for each in workers(tmp_path) if each.environ().get("RANK") == "2" and is_worker(each)]
        victim.kill()

    with pytest.raises(StepFailed, match=r"other: worker 2 \(drafter\) was killed by SIGKILL") as failure:
        launch(job, ("run", "other"), Disturbing(25, kill))
    assert failure.value.status == 137
    assert workers(tmp_path) == []
    kept = sorted(path.name for path in (job.out / "scratch" / "checkpoints").iterdir())
    assert kept[-1] >= "step-00000020"
    home = steps_of(job.out)
    assert home.keys() == {0, 1, 2}
    assert min(len(found) for found in home.values()) >= 20
    result = train(target_folder, job.out, topology=Topology(1, 2), steps=60, checkpoint_every=10)
    assert result["resumed_at"] >= 20
    assert steps_of(job.out) == all_of(3, 60)
    threads = in_threads(tmp_path, target_folder, job.config)
    assert same_bits(job.out, threads)
    assert figures(job.out) == figures(threads)


@pytest.mark.nightly
def test_a_stop_saves_the_step_on_all_hosts_and_others_go_on_from_there(target_folder: Path, tmp_path: Path):
    job = job_of(tmp_path, target_folder, replace(SMALL, steps=60, checkpoint_every=50))
    with pytest.raises(KeyboardInterrupt):
        launch(job, ("run", "other"), Disturbing(10, lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert workers(tmp_path) == []
    (saved,) = (job.out / "scratch" / "checkpoints").iterdir()
    assert "step-00000010" <= saved.name < "step-00000060"
    step = int(saved.name[5:])
    assert {rank: found[:step] for rank, found in steps_of(job.out).items()} == all_of(2, step)
    assert launch(job, ("third", "run"))["resumed_at"] == step
    assert steps_of(job.out) == all_of(2, 60)
    threads = in_threads(tmp_path, target_folder, job.config)
    assert same_bits(job.out, threads)
    assert figures(job.out) == figures(threads)


PROGRAM = """
import sys
from pathlib import Path
from tests.pipeline.launchers import test_several as t
from dataclasses import replace
job = t.job_of(Path(sys.argv[1]), Path(sys.argv[2]), replace(t.SMALL, steps=100_000, checkpoint_every=5))
t.launch(job, ("run", "other"), t.Disturbing(12, lambda: print("training", flush=True)))
"""


@pytest.mark.nightly
def test_what_a_killed_launcher_left_on_hosts_is_ended_by_the_next_one_which_goes_on(
    target_folder: Path, tmp_path: Path
):
    words = [sys.executable, "-B", "-c", PROGRAM, str(tmp_path), str(target_folder)]
    with subprocess.Popen(words, cwd=HOME, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "training\n"
        launcher.kill()
    left = [each for each in workers(tmp_path) if is_worker(each)]
    assert len(left) == 2
    job = job_of(tmp_path, target_folder, replace(SMALL, steps=100_000, checkpoint_every=5))
    seen: list[int] = []

    def stop(step: int) -> None:
        seen.append(step)
        if len(seen) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        launch(job, ("run", "other"), Watching(stop))
    assert seen[0] > 10
    assert not any(each.is_running() for each in left)
    assert workers(tmp_path) == []
    assert (job.out / "metrics.jsonl").read_text().count("\n") >= 10


def is_worker(process: psutil.Process) -> bool:
    words = process.cmdline()
    return "dflash.training.process" in words and "torch.distributed.run" not in words
