"""Learning-rate schedule, and AdamW over one vector of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from dflash.training.config import OptimizerConfig

BETAS, EPS = (0.9, 0.95), 1e-8


def rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """The learning rate of `step` (from 0) of `steps`."""
    warmup = max(1, round(config.warmup * steps))
    if step < warmup:
        return config.lr * (step + 1) / warmup
    along = (step - warmup) / max(1, steps - warmup)
    if config.schedule == "wsd":
        left = max(1, round(config.cooldown * steps))
        along = max(0.0, (step - (steps - left)) / left)
    down = 0.5 * (1 - math.cos(math.pi * along)) if config.schedule == "cosine" else along
    return config.lr * (1 - (1 - config.final) * down)


def set_rate(optimizers: Iterable[torch.optim.Optimizer], lr: float) -> None:
    """Give all parameter groups the rate `lr`."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr


def adamw(
    values: Tensor,
    master: Tensor | None,
    mean: Tensor,
    square: Tensor,
    gradients: Tensor,
    norm: Tensor,
    limit: Tensor,
    lr: Tensor,
    decay: Tensor,
    count: Tensor,
) -> None:
    """One step of AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2), in place.

    `values`, `mean`, `square` and `gradients` are (P,); `master`, float32, holds the weights where `values` are of a
    narrower dtype. Gradients are scaled to a `norm` of at most `limit` first; `count` is the number of this step, from
    1. Where the norm is not finite nothing changes.
    """
    weights = values if master is None else master
    sound = norm.isfinite()
    gradient = gradients.float() * (limit / norm).clamp(max=1.0)
    new_mean = mean + (1 - BETAS[0]) * (gradient - mean)
    new_square = square + (1 - BETAS[1]) * (gradient * gradient - square)
    ahead = (new_mean / (1 - BETAS[0] ** count)) / ((new_square / (1 - BETAS[1] ** count)).sqrt() + EPS)
    new = weights * (1 - lr * decay) - lr * ahead
    mean.copy_(torch.where(sound, new_mean, mean))
    square.copy_(torch.where(sound, new_square, square))
    new = torch.where(sound, new, weights)
    if master is not None:
        master.copy_(new)
    values.copy_(new)


class Flat(Protocol):
    """Weights in one vector of `values` and one of `gradients`, both (P,): `FlatWeights`, or some of them."""

    values: Tensor
    gradients: Tensor

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The parts of a vector (P,) by the name of the parameter; views."""


class AdamW:
    """AdamW with float32 masters over a drafter's weights; everything stays on the device, so nothing is waited for."""

    def __init__(self, flat: Flat, config: OptimizerConfig, update: Callable[..., Any] = adamw, *, steps: int) -> None:
        """`steps` are those of the whole training, which the rate's way depends on; `update` is `adamw`, compiled."""
        self._flat, self._config, self._steps, self._update = flat, config, steps, update
        self._mean = torch.zeros_like(flat.values, dtype=torch.float32)
        self._square = torch.zeros_like(self._mean)
        self._master = None if flat.values.dtype == torch.float32 else flat.values.float()
        self._count = self._scalar(0.0)

    def step(self, step: int, norm: Tensor) -> float:
        """Take `step` (from 0) with the gradients there are, whose norm is the scalar `norm`; the rate it was taken
        with. With a norm that is not finite weights and state stay as they are."""
        lr = rate(step, self._steps, self._config)
        self._count += norm.isfinite()
        self._run(norm, lr)
        return lr

    def warm(self) -> None:
        """Run the update once, changing nothing."""
        self._run(self._scalar(math.inf), 0.0)

    def _run(self, norm: Tensor, lr: float) -> None:
        config = self._config
        limit, rate_now, decay = (self._scalar(each) for each in (config.clip, lr, config.weight_decay))
        state = (self._flat.values, self._master, self._mean, self._square, self._flat.gradients)
        self._update(*state, norm, limit, rate_now, decay, self._count)

    def _scalar(self, value: float) -> Tensor:
        return torch.full((), value, device=self._flat.values.device)

    def tensors(self) -> dict[str, Tensor]:
        """The state by name: `<parameter>/<entry>`, and `count`."""
        named = {
            f"{name}/{entry}": part
            for entry, vector in self._vectors().items()
            for name, part in self._flat.named(vector).items()
        }
        return {**named, "count": self._count}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        for entry, vector in self._vectors().items():
            for name, part in self._flat.named(vector).items():
                part.copy_(saved[f"{name}/{entry}"])
        self._count.copy_(saved["count"])

    def _vectors(self) -> dict[str, Tensor]:
        vectors = {"mean": self._mean, "square": self._square}
        return vectors if self._master is None else {**vectors, "master": self._master}
