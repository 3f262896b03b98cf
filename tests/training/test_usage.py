"""What workers note of themselves: each its own file, each step once, whatever came between."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dflash.training.config import Topology
from dflash.training.metriclog import MetricLog
from dflash.training.trainer import Trainer
from dflash.training.usage import USAGE, busy_by_role, drop_after, files_of, in_words, log_of, workers_in
from tests.training.logged import read_metrics
from tests.training.small import CONFIG, Watching, rows, train
from tests.training.test_trainer import figures, same_bits


def steps_of(out: Path) -> dict[int, list[int]]:
    """The steps of which each worker of a training has a row."""
    folder = out / USAGE
    return {each.rank: [row["step"] for row in read_metrics(log_of(folder, each.rank))] for each in workers_in(folder)}


def note(folder: Path, rank: int, *written: Mapping[str, Any]) -> None:
    log = MetricLog(log_of(folder, rank), 0)
    for step, row in enumerate(written, 1):
        log.write({"step": step, "role": "target", **row})
    log.close()


def all_of(workers: int, steps: int = 12) -> dict[int, list[int]]:
    return {rank: list(range(1, steps + 1)) for rank in range(workers)}


@pytest.fixture(scope="module")
def whole(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of five targets and three drafters as threads, that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole")
    train(target_folder, out)
    return out


def test_each_thread_notes_each_step_once_and_its_role(whole: Path):
    assert steps_of(whole) == all_of(8)
    roles = [each.role for each in workers_in(whole / USAGE)]
    assert roles == ["target"] * 5 + ["drafter"] * 3
    for each in workers_in(whole / USAGE):
        assert each.busy is not None
        assert 0 < each.busy <= 1
        assert each.peak_gb is None
    assert all("gpu_gb" not in row for row in read_metrics(whole / "metrics.jsonl"))


def test_what_is_done_again_is_noted_once(target_folder: Path, tmp_path: Path, whole: Path):
    """Targets had run ahead of the checkpoint that is gone on from."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "scratch" / "checkpoints" / "step-00000012")
    before = {rank: read_metrics(log_of(tmp_path / USAGE, rank)) for rank in range(8)}
    assert train(target_folder, tmp_path)["resumed_at"] == 8
    assert steps_of(tmp_path) == all_of(8)
    for rank, old in before.items():
        new = read_metrics(log_of(tmp_path / USAGE, rank))
        assert new[:8] == old[:8]
        assert new[8:] != old[8:]
    assert same_bits(tmp_path, whole)
    assert figures(tmp_path) == figures(whole)


def test_fewer_workers_that_go_on_leave_of_the_others_what_they_did(target_folder: Path, tmp_path: Path, whole: Path):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "scratch" / "checkpoints" / "step-00000012")
    train(target_folder, tmp_path, topology=Topology(targets=0, drafters=3))
    assert steps_of(tmp_path) == all_of(3) | {rank: list(range(1, 9)) for rank in range(3, 8)}


def test_a_stop_leaves_a_row_of_every_step_that_is_saved(target_folder: Path, tmp_path: Path):
    changes: dict[str, Any] = {"topology": Topology(2, 1), "steps": 60, "checkpoint_every": 100, "evaluate_every": 0}
    asked = count()
    trainer = Trainer(replace(CONFIG, **changes), target_folder, rows(), Watching(), stopping=lambda: next(asked) >= 30)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(tmp_path)
    (saved,) = (tmp_path / "scratch" / "checkpoints").iterdir()
    step = int(saved.name.removeprefix("step-"))
    assert 30 <= step < 60
    assert {rank: found[:step] for rank, found in steps_of(tmp_path).items()} == all_of(3, step)
    train(target_folder, tmp_path, **changes)
    assert steps_of(tmp_path) == all_of(3, 60)


def test_a_share_is_of_the_time_and_not_of_the_steps(tmp_path: Path):
    """A step that stood still for nine seconds is no one among ten."""
    note(tmp_path, 0, *[{"busy_s": 1.0, "step_s": 1.0}] * 9, {"busy_s": 1.0, "step_s": 11.0, "gpu_gb": 31.5})
    note(tmp_path, 10, {"busy_s": 0.25, "step_s": 1.0, "gpu_gb": 7.0}, {"busy_s": 0.25, "step_s": 1.0, "gpu_gb": 6.0})
    one, other = workers_in(tmp_path)
    assert (one.rank, one.busy, one.peak_gb) == (0, 0.5, 31.5)
    assert (other.rank, other.busy, other.peak_gb) == (10, 0.25, 7.0)


def test_a_worker_that_was_there_for_little_weighs_little_in_its_role(tmp_path: Path):
    """Of four seconds it had one, and did nothing in it."""
    note(tmp_path, 0, *[{"busy_s": 1.0, "step_s": 1.0}] * 3)
    note(tmp_path, 1, {"busy_s": 0.0, "step_s": 1.0})
    assert busy_by_role(workers_in(tmp_path)) == {"target": 0.75}


def test_a_worker_without_time_has_no_share_and_one_without_rows_is_none(tmp_path: Path):
    note(tmp_path, 0, {"busy_s": 0.0, "step_s": 0.0})
    note(tmp_path, 1)
    (one,) = workers_in(tmp_path)
    assert one.busy is None
    assert busy_by_role([one]) == {}
    assert workers_in(tmp_path / "nowhere") == []


def test_only_workers_that_are_no_more_lose_what_is_done_again(tmp_path: Path):
    for rank in range(3):
        note(tmp_path, rank, *[{"busy_s": 1.0, "step_s": 1.0}] * 5)
    drop_after(tmp_path, 2, 2)
    assert {each.rank: each.samples.rows for each in workers_in(tmp_path)} == {0: 5, 1: 5, 2: 2}
    assert files_of(tmp_path, range(2, 9)) == ["2.jsonl", "2.sampled.jsonl"]


def test_shares_are_told_in_words():
    assert in_words({"target": 0.816, "drafter": 1.0}) == "targets 82%, drafters 100%"
    assert in_words({"target and drafter": 0.77}) == "workers 77%"
