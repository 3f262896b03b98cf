"""The learning rate's way, clipping, and optimizers that go on from a checkpoint as if they had not stopped."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from dflash.progress import Silent
from dflash.training.bytelm import optimizers_of
from dflash.training.checkpoints import Checkpoints, optimizer_tensors, restore_optimizer
from dflash.training.config import OptimizerConfig, TargetConfig
from dflash.training.optimizer import adamw, clip, rate, set_rate
from tests.tiny import new_draft, new_target

PAPER = OptimizerConfig(lr=6e-4, warmup=0.04)


def test_the_rate_rises_in_a_line_to_the_peak_and_falls_along_a_cosine():
    assert [rate(step, 100, PAPER) for step in range(4)] == pytest.approx([1.5e-4, 3e-4, 4.5e-4, 6e-4])
    assert rate(4, 100, PAPER) == pytest.approx(6e-4)
    assert rate(4 + 48, 100, PAPER) == pytest.approx(3e-4)
    assert rate(4 + 24, 100, PAPER) == pytest.approx(6e-4 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert rate(100, 100, PAPER) == pytest.approx(0.0, abs=1e-12)


def test_it_can_end_above_zero():
    assert rate(100, 100, OptimizerConfig(lr=1.0, final=0.1)) == pytest.approx(0.1)


@given(st.integers(1, 500), st.floats(0, 0.9), st.floats(0, 1))
def test_it_is_above_zero_and_at_most_the_peak_and_never_rises_after_the_warm_up(
    steps: int, warmup: float, final: float
):
    config = OptimizerConfig(lr=2.0, warmup=warmup, final=final)
    rates = [rate(step, steps, config) for step in range(steps)]
    assert all(0 < each <= 2.0 for each in rates)
    first = max(1, round(warmup * steps))
    assert rates[:first] == sorted(rates[:first])
    assert all(later <= earlier + 1e-12 for earlier, later in zip(rates[first:], rates[first + 1 :], strict=False))


def test_all_groups_of_all_optimizers_get_the_rate():
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    two = torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:2], "lr": 3.0}], lr=1.0)
    one = adamw(parameters[2:], PAPER)
    set_rate([two, one], 0.25)
    assert [group["lr"] for optimizer in (two, one) for group in optimizer.param_groups] == [0.25] * 3


def test_adamw_follows_its_formula():
    parameter = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = adamw([parameter], OptimizerConfig(lr=0.1, weight_decay=0.5))
    value = parameter.detach().clone()
    first = second = torch.zeros(2, dtype=torch.float64)
    for step in range(1, 4):
        gradient = torch.tensor([0.3 * step, -1.0], dtype=torch.float64)
        parameter.grad = gradient.clone()
        optimizer.step()
        first, second = 0.9 * first + 0.1 * gradient, 0.95 * second + 0.05 * gradient**2
        value = value * (1 - 0.1 * 0.5)
        value -= 0.1 * (first / (1 - 0.9**step)) / ((second / (1 - 0.95**step)).sqrt() + 1e-8)
        assert torch.allclose(parameter.detach(), value, rtol=1e-12)


def test_clipping_scales_all_gradients_by_their_common_norm():
    parameters = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(2))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0]), torch.tensor([0.0, 4.0])
    assert clip(parameters, 1.0).item() == pytest.approx(5.0)
    assert torch.cat([p.grad for p in parameters]).tolist() == pytest.approx([0.6, 0.0, 0.8], rel=1e-5)
    assert clip(parameters, 10.0).item() == pytest.approx(1.0, rel=1e-5)
    assert torch.cat([p.grad for p in parameters]).tolist() == pytest.approx([0.6, 0.0, 0.8], rel=1e-5)


def optimizers_for(kind: str, model: nn.Module) -> list[torch.optim.Optimizer]:
    if kind == "adamw":
        return [adamw(model.parameters(), OptimizerConfig(lr=1e-2, weight_decay=0.1))]
    return optimizers_of(model, TargetConfig())


def model_for(kind: str) -> nn.Module:
    return (new_draft() if kind == "adamw" else new_target()).float().requires_grad_().train()


def train_step(kind: str, model: nn.Module, optimizers: Iterable[torch.optim.Optimizer], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    if kind == "adamw":
        loss = model.fuse(torch.randn(1, 6, 96, generator=generator)).pow(2).sum()
        contexts = model.extend(None, torch.randn(1, 6, 96, generator=generator), torch.arange(6)[None])
        loss = loss + model(torch.randn(1, 4, 32, generator=generator), torch.arange(6, 10)[None], contexts).sum()
    else:
        tokens = torch.randint(0, 256, (2, 12), generator=generator)
        loss = cross_entropy(model(tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_resumed_optimizer_takes_the_same_next_steps_to_the_last_bit(tmp_path: Path, kind: str):
    model = model_for(kind)
    optimizers = optimizers_for(kind, model)
    for step in range(3):
        train_step(kind, model, optimizers, step)
    names = {parameter: name for name, parameter in model.named_parameters()}
    state = {f"optimizer{i}": optimizer_tensors(each, names) for i, each in enumerate(optimizers)}
    Checkpoints(tmp_path).save(3, {"model": model.state_dict(), **state}, {})

    resumed = model_for(kind)
    found = Checkpoints(tmp_path).latest(Silent())
    assert found is not None
    resumed.load_state_dict(found.tensors("model"))
    others = optimizers_for(kind, resumed)
    for index, optimizer in enumerate(others):
        restore_optimizer(optimizer, resumed.named_parameters(), found.tensors(f"optimizer{index}"))
    fresh = model_for(kind)
    fresh.load_state_dict(found.tensors("model"))
    forgetful = optimizers_for(kind, fresh)
    for step in range(3, 5):
        train_step(kind, model, optimizers, step)
        train_step(kind, resumed, others, step)
        train_step(kind, fresh, forgetful, step)
    for (name, one), (_, other) in zip(model.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    moved = [
        name
        for (name, one), (_, other) in zip(model.named_parameters(), fresh.named_parameters(), strict=True)
        if not torch.equal(one, other)
    ]
    assert len(moved) == len(names)  # without the state, every parameter would go another way
