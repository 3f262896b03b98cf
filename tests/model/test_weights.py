"""All weights in one vector: the same model, the same gradients, and one place for both."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dflash.model.weights import FlatWeights, weights_of
from tests.tiny import new_draft


def test_the_models_parameters_are_views_of_the_vector_and_keep_their_values():
    before = {name: tensor.clone() for name, tensor in new_draft().state_dict().items()}
    draft = new_draft()
    flat = FlatWeights(draft)
    assert {name: tensor.tolist() for name, tensor in draft.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in before.items()
    }
    flat.values.mul_(2)
    assert all(torch.equal(tensor, 2 * before[name]) for name, tensor in draft.state_dict().items())
    assert sum(part.numel() for part in before.values()) <= len(flat.values)


def test_weights_can_be_loaded_into_the_model_afterwards():
    draft, other = new_draft(), new_draft(seed=9)
    flat = FlatWeights(draft)
    draft.load_state_dict(other.state_dict())
    assert torch.equal(flat.weights.fc, other.fc.weight)
    assert torch.equal(flat.weights.layers[1].qkv[-1], other.layers[1].self_attn.v_proj.weight[-1])


def test_joined_copies_hold_the_same_and_pass_gradients_on():
    draft = new_draft()
    copies, views = weights_of(draft), FlatWeights(new_draft()).weights
    for one, other in zip(copies.layers, views.layers, strict=True):
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
    copies.layers[0].qkv.sum().backward()
    assert draft.layers[0].self_attn.k_proj.weight.grad is not None


def test_a_gradient_comes_out_under_its_parameters_name():
    draft = new_draft()
    flat = FlatWeights(draft)
    (flat.weights.layers[1].qkv[-1].sum() * 3 + flat.weights.norm.sum()).backward()
    named = flat.named(flat.gradients)
    assert named.keys() == dict(draft.named_parameters()).keys()
    assert named["layers.1.self_attn.v_proj.weight"][-1].eq(3).all()
    assert named["norm.weight"].eq(1).all()
    touched = {name for name, part in named.items() if part.any()}
    assert touched == {"layers.1.self_attn.v_proj.weight", "norm.weight"}


def test_gradients_of_one_step_add_up_and_those_of_the_next_replace_them():
    flat = FlatWeights(new_draft())
    flat.begin_step()
    for factor in (2, 3):
        (flat.weights.norm.sum() * factor).backward()
    assert flat.named(flat.gradients)["norm.weight"].eq(5).all()
    flat.begin_step()
    flat.weights.norm.sum().backward()
    assert flat.named(flat.gradients)["norm.weight"].eq(1).all()
    assert flat.weights.norm.grad is None


def test_gradients_can_be_wider_than_the_weights_so_that_small_ones_are_not_lost():
    flat = FlatWeights(new_draft().bfloat16(), torch.float32)
    flat.begin_step()
    for factor in (1.0, 2.0**-12):
        (flat.weights.norm.sum() * factor).backward()
    assert flat.named(flat.gradients)["norm.weight"].eq(1 + 2.0**-12).all()


def test_every_matrix_begins_where_a_kernel_can_read_many_at_once():
    flat = FlatWeights(new_draft())
    for layer in flat.weights.layers:
        assert all(tensor.storage_offset() % 128 == 0 for tensor in layer)


def test_a_parameter_that_training_does_not_know_is_refused_by_name():
    draft = new_draft()
    draft.fc.bias = nn.Parameter(torch.zeros(draft.config.hidden_size))
    with pytest.raises(ValueError, match=r"does not know: fc\.bias"):
        FlatWeights(draft)
