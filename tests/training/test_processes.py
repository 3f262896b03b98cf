"""Workers as processes train what workers as threads train, and none outlives another that died."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from dflash.errors import CheckpointError, StepFailed
from dflash.progress import Metric
from dflash.training.checkpoints import Checkpoints
from dflash.training.config import Topology, TrainConfig, train_config
from dflash.training.launching import train_in_processes
from dflash.training.packing import save_rows
from dflash.training.usage import USAGE, workers_in
from tests.training.logged import read_metrics
from tests.training.small import CONFIG, Watching, held_out, rows, train
from tests.training.test_trainer import figures, same_bits
from tests.training.test_usage import all_of, steps_of

__all__ = ["train_config"]  # for the program that is killed
PAIR = replace(CONFIG, topology=Topology(1, 1), steps=6, checkpoint_every=3)


def launch(target: Path, out: Path, config: TrainConfig, watching: Watching | None = None) -> dict[str, Any]:
    packed, heldout = out.parent / "rows.safetensors", out.parent / "heldout.safetensors"
    save_rows(packed, rows())
    save_rows(heldout, held_out())
    out.mkdir(exist_ok=True)
    return train_in_processes(config, target, packed, out, watching or Watching(), heldout=heldout)


def in_threads(target: Path, out: Path, config: TrainConfig) -> dict[str, Any]:
    return train(target, out, **{name: getattr(config, name) for name in ("topology", "steps", "checkpoint_every")})


def test_a_target_and_a_drafter_as_processes_train_to_the_bits_of_threads(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    watching = Watching()
    monkeypatch.chdir(target_folder.parent)
    result = launch(Path(target_folder.name), tmp_path / "processes", PAIR, watching)
    in_threads(target_folder, tmp_path / "threads", PAIR)
    assert same_bits(tmp_path / "processes", tmp_path / "threads")
    assert figures(tmp_path / "processes") == figures(tmp_path / "threads")
    assert result["heldout"] == read_metrics(tmp_path / "threads" / "metrics.jsonl")[-1]["heldout"]
    assert result["step"] == 6
    assert [done for done, _ in watching.steps] == [1, 2, 3, 4, 5, 6]
    assert steps_of(tmp_path / "processes") == all_of(2, 6)
    assert [each.role for each in workers_in(tmp_path / "processes" / USAGE)] == ["target", "drafter"]


@pytest.mark.nightly
def test_a_target_that_is_spread_over_two_processes_teaches_what_a_whole_one_does(target_folder: Path, tmp_path: Path):
    spread = replace(PAIR, topology=Topology(1, 1, target_gpus=2))
    launch(target_folder, tmp_path / "spread", spread)
    in_threads(target_folder, tmp_path / "threads", PAIR)
    mine, theirs = figures(tmp_path / "spread"), figures(tmp_path / "threads")
    assert len(mine) == len(theirs) == 6
    for (_, loss, *_), (_, expected, *_) in zip(mine, theirs, strict=True):
        assert loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.nightly
def test_five_targets_and_three_drafters_as_processes_do_too(target_folder: Path, tmp_path: Path):
    launch(target_folder, tmp_path / "processes", CONFIG)
    in_threads(target_folder, tmp_path / "threads", CONFIG)
    assert same_bits(tmp_path / "processes", tmp_path / "threads")
    assert figures(tmp_path / "processes") == figures(tmp_path / "threads")


@pytest.mark.nightly
def test_colocated_workers_as_processes_train_to_the_bits_of_a_split_in_threads(target_folder: Path, tmp_path: Path):
    launch(target_folder, tmp_path / "processes", replace(PAIR, topology=Topology(0, 2)))
    in_threads(target_folder, tmp_path / "threads", replace(PAIR, topology=Topology(1, 2)))
    assert same_bits(tmp_path / "processes", tmp_path / "threads")
    assert figures(tmp_path / "processes") == figures(tmp_path / "threads")


class Disturbing(Watching):
    """Does something once, at a step."""

    def __init__(self, step: int, act: Callable[[], None]) -> None:
        super().__init__()
        self._step, self._act = step, act

    def update(self, done: int, total: int, metrics: Mapping[str, Metric] | None = None) -> None:
        super().update(done, total, metrics)
        if done == self._step:
            self._act()


def workers() -> list[psutil.Process]:
    return [
        each
        for each in psutil.Process().children(recursive=True)
        if "dflash.training.process" in each.cmdline() and "torch.distributed.run" not in each.cmdline()
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_killed_takes_the_others_down_and_the_next_start_goes_on(
    target_folder: Path, tmp_path: Path, victim: int
):
    config = replace(PAIR, steps=300, checkpoint_every=20)
    gone: list[float] = []

    def kill() -> None:
        sorted(workers(), key=lambda each: each.pid)[victim].kill()
        gone.append(time.monotonic())

    with pytest.raises(StepFailed, match="a worker of the training died"):
        launch(target_folder, tmp_path / "out", config, Disturbing(30, kill))
    assert time.monotonic() - gone[0] < 30
    assert workers() == []
    assert launch(target_folder, tmp_path / "out", config)["resumed_at"] >= 20
    in_threads(target_folder, tmp_path / "threads", config)
    assert same_bits(tmp_path / "out", tmp_path / "threads")


def two_hosts(target: Path, outs: Sequence[Path], config: TrainConfig) -> tuple[list[int], str]:
    """A torchrun for each of two hosts, which are this one, with half of the workers each and a folder; how they ended,
    and all that they said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ExitStack() as stack:
        running = []
        for number, out in enumerate(outs):
            (out / "scratch").mkdir(parents=True, exist_ok=True)
            fields = {"train": asdict(config), "target": str(target), "out": str(out), "stop": str(out / "stop")}
            for name, packed in {"rows": rows(), "heldout": held_out()}.items():
                save_rows(out / name, packed)
                fields[name] = str(out / name)
            request = out / "scratch" / f"request{number}.json"
            request.write_text(json.dumps({**fields, "warm_only": False}))
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={number}"]
            command += ["--master-addr=127.0.0.1", f"--master-port={port}"]
            command += [f"--nproc-per-node={config.topology.size // 2}", "--no-python"]
            command += [sys.executable, "-m", "dflash.training.process", str(request)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            running.append(stack.enter_context(subprocess.Popen(command, text=True, **pipes)))
        with ThreadPoolExecutor() as pool:  # their input stays open: at its end workers end
            said = list(pool.map(lambda each: each.stdout.read(), running))
        return [each.wait() for each in running], "".join(said)


@pytest.mark.nightly
def test_workers_of_two_hosts_that_share_a_folder_train_to_the_bits_of_threads_and_go_on(
    target_folder: Path, tmp_path: Path
):
    """The second host's workers are drafters, beside another on the first."""
    config = replace(PAIR, topology=Topology(1, 3))
    in_threads(target_folder, tmp_path / "threads", config)
    shared = tmp_path / "shared"
    for begun in ("worker 3 (drafter) is warm", "train: resumed at step 3 of 6"):
        statuses, said = two_hosts(target_folder, [shared, shared], config)
        assert statuses == [0, 0], said
        assert begun in said
        assert figures(shared) == figures(tmp_path / "threads")
        assert same_bits(shared, tmp_path / "threads")
        shutil.rmtree(shared / "scratch" / "checkpoints" / "step-00000006")
        shutil.rmtree(shared / "draft")


@pytest.mark.nightly
def test_hosts_that_see_different_checkpoints_are_refused(target_folder: Path, tmp_path: Path):
    one, other = tmp_path / "one", tmp_path / "other"
    launch(target_folder, one, PAIR)
    statuses, said = two_hosts(target_folder, [one, other], PAIR)
    assert 0 not in statuses
    assert "see different checkpoints, of steps 0, 6" in said


SLOW_DISK = """
import time
from dflash.training.checkpoints import Checkpoints
save = Checkpoints.save
Checkpoints.save = lambda *words, **named: time.sleep(6) or save(*words, **named)
"""
"""Python runs a `sitecustomize` first, in each process."""


@pytest.mark.nightly
def test_all_drafters_wait_for_the_checkpoint_that_one_of_them_writes(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A worker that ended before that would have torchrun end the writer."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_DISK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = replace(PAIR, topology=Topology(1, 2), steps=100_000, checkpoint_every=100_000)
    with pytest.raises(KeyboardInterrupt):
        launch(target_folder, tmp_path / "out", config, Disturbing(10, lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert workers() == []
    found = Checkpoints(tmp_path / "out" / "scratch" / "checkpoints").latest(Watching())
    assert found
    assert found.step >= 10


@pytest.mark.nightly
def test_workers_that_hang_are_ended_and_it_is_said_who_waits_for_whom(target_folder: Path, tmp_path: Path):
    config = replace(PAIR, steps=100_000, checkpoint_every=1000, patience_s=4.0)

    def stop() -> None:
        by_rank = {int(each.environ()["RANK"]): each for each in workers()}
        by_rank[0].suspend()

    with pytest.raises(
        StepFailed, match="hang, for 4 s now: worker 1 waits for features of worker 0; worker 0 waits for nobody"
    ):
        launch(target_folder, tmp_path / "out", config, Disturbing(30, stop))
    assert workers() == []


@pytest.mark.nightly
def test_workers_end_when_whoever_started_them_is_killed(target_folder: Path, tmp_path: Path):
    config = replace(PAIR, steps=100_000, checkpoint_every=1000)
    program = (
        "from pathlib import Path; from tests.training import test_processes as t; "
        f"t.launch(Path({str(target_folder)!r}), Path({str(tmp_path / 'out')!r}), t.train_config({asdict(config)!r}), "
        "t.Disturbing(3, lambda: print('training', flush=True)))"
    )
    with subprocess.Popen([sys.executable, "-B", "-c", program], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "training\n"
        started = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []


@pytest.mark.nightly
def test_an_interrupt_saves_the_step_and_the_next_start_goes_on_from_there(target_folder: Path, tmp_path: Path):
    """As threads, since those train the same."""
    config = replace(PAIR, steps=60, checkpoint_every=50)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(target_folder, tmp_path / "out", config, Disturbing(10, interrupt))
    assert in_threads(target_folder, tmp_path / "out", config)["resumed_at"] >= 10
    assert [row["step"] for row in read_metrics(tmp_path / "out" / "metrics.jsonl")] == list(range(1, 61))
    assert steps_of(tmp_path / "out") == all_of(2, 60)


@pytest.mark.nightly
def test_what_is_wrong_is_one_line_of_its_own_kind(target_folder: Path, tmp_path: Path):
    launch(target_folder, tmp_path / "out", PAIR)
    with pytest.raises(CheckpointError, match="another configuration: seed"):
        launch(target_folder, tmp_path / "out", replace(PAIR, seed=3))
