"""A step's figures add up over ranks, and their log survives a kill."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from dflash.errors import StorageError
from dflash.model.loss import accepted
from dflash.training.metrics import MetricLog, Sums, gpu_memory, read_metrics
from dflash.training.regions import Labels, Outcome

CORRECT = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1]]).bool()
SUMS = Sums(4, drafters=3)
VALID = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 1], [0, 0, 0]]).bool()


def figures(part: slice, loss: float, tokens: int, *, drafter: int = 0, stop: bool = False) -> torch.Tensor:
    """One drafter's vector, for some of the five blocks above."""
    correct, valid = CORRECT[part], VALID[part]
    outcome = Outcome(torch.tensor(loss, requires_grad=True), correct, accepted(correct, valid))
    wanted = Labels(torch.zeros_like(valid).long(), valid, valid.float(), int(valid.sum()), valid.sum())
    return SUMS.of(outcome, wanted, tokens, drafter=drafter, stop=stop)


def test_ranks_sum_to_what_one_rank_would_have_measured():
    parts = ((slice(0, 2), 3.0, 10), (slice(2, 3), 0.5, 20), (slice(3, 5), 1.0, 5))
    apart = torch.stack([figures(*part, drafter=place) for place, part in enumerate(parts)]).sum(0)
    together = figures(slice(0, 5), 4.5, 35)
    assert apart.dtype == torch.float64
    assert not together.requires_grad
    assert torch.equal(apart, together)
    assert apart.shape == (SUMS.size,)


def test_the_figures_are_means_over_what_was_valid():
    read = SUMS.read(figures(slice(0, 5), 4.5, 35))
    assert read == {
        "loss": 4.5,
        "accuracy": [3 / 4, 2 / 3, 2 / 3],
        "accept_len": (3 + 2 + 3 + 1) / 4,
        "tokens": 35,
        "stop": False,
        "not_finite": [],
    }


def test_one_rank_that_wants_to_stop_is_enough():
    assert SUMS.read(figures(slice(0, 1), 0.0, 1) + figures(slice(1, 2), 0.0, 1, stop=True))["stop"]


def test_a_step_without_any_valid_label_has_figures_too():
    read = SUMS.read(figures(slice(4, 5), 0.0, 8))
    nothing = {"loss": 0.0, "accuracy": [0.0] * 3, "accept_len": 0.0}
    assert read == {**nothing, "tokens": 8, "stop": False, "not_finite": []}


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_told_of_its_drafter_and_spoils_no_other_figure(loss: float):
    total = figures(slice(0, 2), 3.0, 10) + figures(slice(2, 5), loss, 20, drafter=2)
    read = SUMS.read(total)
    assert read["not_finite"] == [2]
    assert math.isnan(read["loss"])
    assert read["accept_len"] == 9 / 4


def log_rows(path: Path, first: int, *steps: int) -> None:
    log = MetricLog(path, first)
    for step in steps:
        log.write({"step": step, "loss": step / 3})
    log.close()


def test_rows_are_read_as_they_were_written(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    log_rows(path, 0, 1, 2)
    assert read_metrics(path) == [{"step": 1, "loss": 1 / 3}, {"step": 2, "loss": 2 / 3}]


def test_a_row_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path):
    log = MetricLog(tmp_path / "metrics.jsonl", 0)
    log.write({"step": 1})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]
    log.close()


def test_a_resumed_training_drops_the_rows_after_its_checkpoint(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    log_rows(path, 0, 1, 2, 3, 4)
    log_rows(path, 2, 3)
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]
    log_rows(path, 0)
    assert read_metrics(path) == []


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_torn_last_line_is_passed_over_and_gone_after_the_next_start(tmp_path: Path, cut: int):
    path = tmp_path / "metrics.jsonl"
    log_rows(path, 0, 1, 2, 3)
    path.write_bytes(path.read_bytes()[:-cut])
    whole = 3 if cut == 1 else 2  # only the line's end is missing
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3][:whole]
    log_rows(path, 2, 3)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


def test_a_log_that_is_not_there_yet_has_no_rows(tmp_path: Path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_a_log_that_can_not_be_read_is_named(tmp_path: Path):
    with pytest.raises(StorageError, match=rf"^{tmp_path}: Is a directory"):
        read_metrics(tmp_path)


def test_the_gpu_memory_of_each_worker_of_a_process_is_told_and_on_a_cpu_none(monkeypatch: pytest.MonkeyPatch):
    peaks = {0: 1_500_000_000, 1: 20_000_000, None: 7_000_000_000}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", peaks.__getitem__)
    assert gpu_memory(range(2), "cuda") == {"gpu_gb": [1.5, 0.02]}
    assert gpu_memory((5,), "cuda") == {"gpu_gb": [7.0]}
    assert gpu_memory(range(2), "cpu") == {}
