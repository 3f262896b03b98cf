"""Labels, decay and what counts as accepted."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dflash.model.loss import accepted, dpace_weights, labels_of, slot_decay

TOKENS = torch.arange(100, 110)[None]
DOCUMENTS = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1, 1, -1]])
ALL = DOCUMENTS >= 0


def labels_at(anchor: int, trainable: Tensor = ALL, documents: Tensor = DOCUMENTS) -> list[int | None]:
    """The label of slots 1..3 of one block, None where it is not trained."""
    tokens, valid = labels_of(TOKENS, trainable, documents, torch.tensor([[anchor]]), 4)
    assert tokens.shape == valid.shape == (1, 1, 3)
    return [int(token) if use else None for token, use in zip(tokens[0, 0], valid[0, 0], strict=True)]


def test_slot_k_is_to_say_the_token_k_after_the_anchor():
    assert labels_at(0) == [101, 102, 103]
    assert labels_at(1) == [102, 103, 104]


def test_a_block_ends_with_its_document():
    assert labels_at(2) == [103, 104, None]
    assert labels_at(4) == [None, None, None]


def test_a_block_ends_with_its_row():
    full = torch.zeros_like(DOCUMENTS)
    assert labels_at(7, torch.ones_like(ALL), full) == [108, 109, None]
    assert labels_at(9, torch.ones_like(ALL), full) == [None, None, None]


def test_padding_is_no_label():
    assert labels_at(7) == [108, None, None]


@pytest.mark.parametrize(("place", "labels"), [(0, [101, 102, 103]), (1, [None, 102, 103]), (3, [101, 102, None])])
def test_the_mask_is_that_of_the_token_to_be_said_not_of_the_anchor(place: int, labels: list[int | None]):
    trainable = ALL.clone()
    trainable[0, place] = False
    assert labels_at(0, trainable) == labels


def test_an_unused_slot_has_no_label():
    assert labels_at(-1) == [None, None, None]


def test_weights_decay_from_one_by_the_papers_formula():
    decay = slot_decay(5, gamma=4.0)
    assert decay.tolist() == pytest.approx([math.exp(-(k - 1) / 4.0) for k in (1, 2, 3, 4)])
    assert decay[0] == 1.0


@pytest.mark.parametrize(
    ("correct", "valid", "gained"),
    [
        ([1, 1, 1], [1, 1, 1], 4),
        ([1, 1, 0], [1, 1, 1], 3),
        ([0, 1, 1], [1, 1, 1], 1),
        ([1, 0, 1], [1, 1, 1], 2),
        ([1, 1, 1], [1, 0, 1], 2),
        ([1, 1, 1], [0, 0, 0], 1),
    ],
)
def test_accepted_tokens_are_the_right_ones_up_to_the_first_wrong_one_and_the_targets_own(
    correct: list[int], valid: list[int], gained: int
):
    assert accepted(torch.tensor([correct]).bool(), torch.tensor([valid]).bool()).tolist() == [gained]


def test_dpace_weighs_a_slot_by_what_it_and_all_after_it_are_expected_to_gain():
    confidence, alpha = [0.9, 0.5, 0.1], 0.5
    smooth = [(1 - alpha) * q + alpha for q in confidence]
    reached = [smooth[0], smooth[0] * smooth[1], smooth[0] * smooth[1] * smooth[2]]
    losses = -torch.tensor([confidence]).log()
    found = dpace_weights(losses, torch.ones(1, 3).bool(), alpha)
    assert found[0].tolist() == pytest.approx([sum(reached), reached[1] + reached[2], reached[2]], rel=1e-6)


def test_dpace_leaves_slots_that_are_not_valid_out():
    losses = torch.tensor([[0.1, 7.0, 0.7], [0.1, 0.7, 7.0]])
    valid = torch.tensor([[True, False, True], [True, True, False]])
    found = dpace_weights(losses, valid, 0.5)
    assert found[0, 1] == found[1, 2] == 0
    assert torch.equal(found[0, [0, 2]], found[1, [0, 1]])


def test_dpace_that_trusts_every_slot_alike_counts_the_slots_to_come():
    assert dpace_weights(torch.rand(1, 4), torch.ones(1, 4).bool(), 1.0).tolist() == [[4, 3, 2, 1]]
