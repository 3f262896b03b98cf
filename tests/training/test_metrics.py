"""A step's figures add up over ranks, and their log survives a kill."""

from __future__ import annotations

import math

import pytest
import torch

from dflash.model.loss import accepted
from dflash.training.metrics import Sums
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
