"""Learning-rate schedule, optimizers and clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dflash.training.config import OptimizerConfig


def rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """The learning rate of `step` (from 0) of `steps`."""
    warmup = max(1, round(config.warmup * steps))
    if step < warmup:
        return config.lr * (step + 1) / warmup
    along = (step - warmup) / max(1, steps - warmup)
    return config.lr * (config.final + (1 - config.final) * 0.5 * (1 + math.cos(math.pi * along)))


def set_rate(optimizers: Iterable[torch.optim.Optimizer], lr: float) -> None:
    """Give all parameter groups the rate `lr`."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr


def adamw(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    """Fused AdamW over `parameters`."""
    return torch.optim.AdamW(parameters, lr=config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay, fused=True)


def clip(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale gradients to a global norm of at most `limit`; the norm before, a scalar."""
    return nn.utils.clip_grad_norm_(parameters, limit)
