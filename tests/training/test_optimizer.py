"""The learning rate's way, clipping, and optimizers that go on from a checkpoint as if they had not stopped."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dflash.model.weights import FlatWeights
from dflash.progress import Silent
from dflash.training.bytelm import optimizers_of
from dflash.training.checkpoints import Checkpoints, optimizer_tensors, restore_optimizer
from dflash.training.config import OptimizerConfig, TargetConfig
from dflash.training.optimizer import AdamW, rate, set_rate
from tests.tiny import new_draft, new_target

PAPER = OptimizerConfig(lr=6e-4, warmup=0.04)


def test_the_rate_rises_in_a_line_to_the_peak_and_falls_along_a_cosine():
    assert [rate(step, 100, PAPER) for step in range(4)] == pytest.approx([1.5e-4, 3e-4, 4.5e-4, 6e-4])
    assert rate(4, 100, PAPER) == pytest.approx(6e-4)
    assert rate(4 + 48, 100, PAPER) == pytest.approx(3e-4)
    assert rate(4 + 24, 100, PAPER) == pytest.approx(6e-4 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert rate(100, 100, PAPER) == pytest.approx(0.0, abs=1e-12)


def test_a_line_falls_by_the_same_at_each_step():
    config = OptimizerConfig(lr=1.0, warmup=0.1, schedule="linear", final=0.1)
    rates = [rate(step, 100, config) for step in range(10, 101)]
    assert rates[0] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.1)
    assert all(a - b == pytest.approx(0.01) for a, b in itertools.pairwise(rates))


def test_wsd_keeps_the_peak_and_falls_in_a_line_over_its_last_share():
    config = OptimizerConfig(lr=1.0, warmup=0.1, schedule="wsd", cooldown=0.25)
    assert {rate(step, 100, config) for step in range(9, 76)} == {1.0}
    assert [rate(step, 100, config) for step in (80, 90, 100)] == pytest.approx([0.8, 0.4, 0.0])


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"schedule": "step"}, "schedule is cosine, linear or wsd, not 'step'"),
        ({"schedule": "wsd", "warmup": 0.5, "cooldown": 0.6}, "cooldown is a share of the steps after the warm-up"),
        ({"final": 1.5}, "final is a share of the peak"),
    ],
)
def test_a_way_that_can_not_be_gone_is_refused(fields: dict[str, Any], complaint: str):
    with pytest.raises(ValueError, match=complaint):
        OptimizerConfig(**fields)


def test_it_can_end_above_zero():
    assert rate(100, 100, OptimizerConfig(lr=1.0, final=0.1)) == pytest.approx(0.1)


@given(st.integers(1, 500), st.floats(0, 0.8), st.floats(0, 1), st.sampled_from(["cosine", "linear", "wsd"]))
def test_it_is_above_zero_and_at_most_the_peak_and_never_rises_after_the_warm_up(
    steps: int, warmup: float, final: float, schedule: str
):
    config = OptimizerConfig(lr=2.0, warmup=warmup, final=final, schedule=schedule)
    rates = [rate(step, steps, config) for step in range(steps)]
    assert all(0 < each <= 2.0 for each in rates)
    first = max(1, round(warmup * steps))
    assert rates[:first] == sorted(rates[:first])
    assert all(later <= earlier + 1e-12 for earlier, later in zip(rates[first:], rates[first + 1 :], strict=False))


def test_all_groups_of_all_optimizers_get_the_rate():
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    two = torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:2], "lr": 3.0}], lr=1.0)
    one = torch.optim.SGD(parameters[2:], lr=1.0)
    set_rate([two, one], 0.25)
    assert [group["lr"] for optimizer in (two, one) for group in optimizer.param_groups] == [0.25] * 3


def flat_of(seed: int = 1, dtype: torch.dtype = torch.float32) -> FlatWeights:
    return FlatWeights(new_draft(seed).to(dtype))


def gradients_of(flat: FlatWeights, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    for part in flat.named(flat.gradients).values():
        part.copy_(torch.randn(part.shape, generator=generator))
    return flat.gradients


def take(optimizer: AdamW, flat: FlatWeights, step: int, spoil: float = 1.0) -> float:
    gradients = gradients_of(flat, step)
    flat.named(gradients)["norm.weight"].mul_(spoil)
    return optimizer.step(step, gradients.float().norm())


def test_adamw_and_its_clipping_are_torchs():
    flat = flat_of()
    parameter = nn.Parameter(flat.values.clone())
    config = OptimizerConfig(lr=0.1, weight_decay=0.5, clip=3.0)
    mine = AdamW(flat, config, steps=10)
    torchs = torch.optim.AdamW([parameter], lr=0.1, betas=(0.9, 0.95), weight_decay=0.5)
    for step in range(4):
        parameter.grad = gradients_of(flat, step).clone()
        nn.utils.clip_grad_norm_([parameter], 3.0)
        set_rate([torchs], take(mine, flat, step))
        torchs.step()
        assert torch.allclose(flat.values, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_in_bfloat16_small_steps_add_up_in_the_masters():
    narrow, wide = flat_of(dtype=torch.bfloat16), flat_of()
    wide.values.copy_(narrow.values)
    config = OptimizerConfig(lr=1e-4, warmup=0.0, final=1.0)
    optimizers = [AdamW(flat, config, steps=40) for flat in (narrow, wide)]
    for step in range(40):
        for optimizer, flat in zip(optimizers, (narrow, wide), strict=True):
            optimizer.step(step, flat.gradients.fill_(1).float().norm())
    assert torch.equal(narrow.values, wide.values.bfloat16())  # each step alone is less than bfloat16 can tell
    assert not torch.equal(narrow.values, flat_of(dtype=torch.bfloat16).values)


@pytest.mark.parametrize("spoil", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing_and_the_next_step_is_as_if_it_had_not_been(spoil: float):
    flats = [flat_of(), flat_of()]
    optimizers = [AdamW(flat, OptimizerConfig(lr=1e-2), steps=10) for flat in flats]
    for optimizer, flat in zip(optimizers, flats, strict=True):
        take(optimizer, flat, 0)
    take(optimizers[0], flats[0], 1, spoil=spoil)
    assert torch.equal(flats[0].values, flats[1].values)
    for optimizer, flat in zip(optimizers, flats, strict=True):
        take(optimizer, flat, 2)
    assert torch.equal(flats[0].values, flats[1].values)
    assert flats[0].values.isfinite().all()


def test_warming_changes_neither_weights_nor_state():
    flat = flat_of()
    optimizer = AdamW(flat, PAPER, steps=10)
    before = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
    gradients_of(flat, 0)
    optimizer.warm()
    assert torch.equal(flat.values, flat_of().values)
    assert all(torch.equal(tensor, before[name]) for name, tensor in optimizer.tensors().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_adamw_takes_the_same_next_steps_to_the_last_bit(tmp_path: Path, dtype: torch.dtype):
    draft = new_draft().to(dtype)
    flat = FlatWeights(draft)
    optimizer = AdamW(flat, OptimizerConfig(lr=1e-2, weight_decay=0.1), steps=10)
    for step in range(3):
        take(optimizer, flat, step)
    Checkpoints(tmp_path).save(3, {"model": draft.state_dict(), "optimizer": optimizer.tensors()}, {})
    found = Checkpoints(tmp_path).latest(Silent())
    assert found is not None

    def resumed(*, state: bool) -> tuple[AdamW, FlatWeights]:
        other = new_draft(seed=8).to(dtype)
        weights = FlatWeights(other)
        other.load_state_dict(found.tensors("model"))
        again = AdamW(weights, OptimizerConfig(lr=1e-2, weight_decay=0.1), steps=10)
        if state:
            again.restore(found.tensors("optimizer"))
        return again, weights

    good, forgetful = resumed(state=True), resumed(state=False)
    for step in range(3, 5):
        for each in ((optimizer, flat), good, forgetful):
            take(*each, step)
    assert torch.equal(good[1].values, flat.values)
    assert not torch.equal(forgetful[1].values, flat.values)


def train_step(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 256, (2, 12), generator=generator)
    cross_entropy(model(tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def trainable_target() -> nn.Module:
    return new_target().float().requires_grad_().train()


def test_a_resumed_training_of_the_small_target_takes_the_same_next_steps_to_the_last_bit(tmp_path: Path):
    model = trainable_target()
    optimizers = optimizers_of(model, TargetConfig())
    for step in range(3):
        train_step(model, optimizers, step)
    names = {parameter: name for name, parameter in model.named_parameters()}
    state = {f"optimizer{i}": optimizer_tensors(each, names) for i, each in enumerate(optimizers)}
    Checkpoints(tmp_path).save(3, {"model": model.state_dict(), **state}, {})

    resumed = trainable_target()
    found = Checkpoints(tmp_path).latest(Silent())
    assert found is not None
    resumed.load_state_dict(found.tensors("model"))
    others = optimizers_of(resumed, TargetConfig())
    for index, optimizer in enumerate(others):
        restore_optimizer(optimizer, resumed.named_parameters(), found.tensors(f"optimizer{index}"))
    fresh = trainable_target()
    fresh.load_state_dict(found.tensors("model"))
    forgetful = optimizers_of(fresh, TargetConfig())
    for step in range(3, 5):
        train_step(model, optimizers, step)
        train_step(resumed, others, step)
        train_step(fresh, forgetful, step)
    for (name, one), (_, other) in zip(model.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    moved = [
        name
        for (name, one), (_, other) in zip(model.named_parameters(), fresh.named_parameters(), strict=True)
        if not torch.equal(one, other)
    ]
    assert len(moved) == len(names)  # without the state, every parameter would go another way
