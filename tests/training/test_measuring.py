"""The figures of a training are those of its own workers, one role after the other on one device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dflash.errors import OutOfMemory, UsageError
from dflash.model.target import target_config
from dflash.progress import Silent
from dflash.training import measuring
from dflash.training.costs import Figures
from dflash.training.drafts import blank_draft, draft_config
from dflash.training.measuring import Alone, measure
from tests.training.small import CONFIG

LINK = 1e9


def of(target: Path, buckets=(32, 48), **changes) -> Figures:
    return measure(replace(CONFIG, **changes), target_config(target), buckets, LINK, Silent())


def test_the_roles_are_timed_and_their_tensors_counted(target_folder: Path):
    figures, shape = of(target_folder), draft_config(target_config(target_folder), CONFIG.draft)
    weights = sum(each.nbytes for each in blank_draft(shape, torch.device("meta")).parameters())
    assert min(figures.target_s, figures.draft_s, figures.update_s) > 0
    assert weights <= figures.gradient_bytes < 1.1 * weights, "float32, and some padding"
    assert figures.feature_bytes == 48 * 2 * shape.hidden_size * 4, "a row of the longest bucket, two layers of it"
    assert (figures.tokens, figures.link_bytes_per_s) == (48, LINK)
    assert (figures.target_bytes, figures.drafter_bytes, figures.memory_bytes) == (None, None, None)


def test_an_accumulated_step_is_measured_by_the_micro_batch(target_folder: Path):
    one, four = of(target_folder), of(target_folder, accumulate=4, dtype="bfloat16", rows=2)
    assert (four.accumulate, four.tokens) == (4, 96)
    assert four.gradient_bytes == one.gradient_bytes, "which adds up in float32"
    assert four.feature_bytes == one.feature_bytes, "two rows, of half the bytes"


def test_a_steps_micro_batches_lie_between_the_sum_before_and_the_sum_after_them():
    """Times of a made-up drafter: two micro-batches a step, and several sums around them."""
    comm = Alone(torch.device("cpu"))
    asked = ["sum", "receive", "receive", "sum", "sum"]
    comm._asked = [(what, float(moment)) for moment, what in enumerate(asked * 3)]
    assert comm.steps() == [(0.0, 3.0, 5.0), (5.0, 8.0, 10.0)]


@pytest.mark.parametrize(("room", "role"), [(100, "target"), (1_000_000, "drafter")])
def test_a_role_that_is_too_large_is_refused_before_it_is_tried(
    target_folder: Path, monkeypatch: pytest.MonkeyPatch, room: int, role: str
):
    monkeypatch.setattr(measuring, "total_memory", lambda device: room)
    with pytest.raises(
        OutOfMemory, match=f"a {role} does not fit into the .* GiB of one device .cpu. with 1 rows of 48"
    ):
        of(target_folder, draft=replace(CONFIG.draft, layers=16))


def test_a_device_that_is_full_is_one_clear_line(target_folder: Path, monkeypatch: pytest.MonkeyPatch):
    def full(worker: object, buckets: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(measuring.DrafterWorker, "warm", full)
    with pytest.raises(OutOfMemory, match=r"a drafter does not fit .*; lower train.rows or the longest of data"):
        of(target_folder)


def test_a_training_for_gpus_is_not_measured_without_one(target_folder: Path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UsageError, match="measured on a GPU, and torch sees none"):
        of(target_folder, buckets=(128,), device="cuda", anchors=32)
