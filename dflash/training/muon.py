"""Muon, torch's own, over the matrices of a drafter's one vector of weights; AdamW for what is no matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dflash.model.weights import FlatWeights
from dflash.training.config import OptimizerConfig
from dflash.training.optimizer import AdamW, adamw, rate, set_rate


@dataclass(frozen=True)
class Matrix:
    """One matrix, all (M, N): views of the drafter's `values` and their `gradients`; the float32 `weights`, which are
    the values themselves where those are float32; and their `momentum`."""

    values: Tensor
    gradients: Tensor
    weights: Tensor
    momentum: Tensor


class Gathered:
    """Tensors of one dimension, which lie apart, copied into one vector (N,) of `values` and one of `gradients`: what
    `AdamW` takes a step on."""

    def __init__(self, values: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """Both are views by name, in the same order."""
        self._values, self._gradients = values, gradients
        self.values, self.gradients = torch.cat(list(values.values())), torch.cat(list(gradients.values()))

    def gather(self) -> None:
        """Copy the tensors here."""
        torch.cat(list(self._values.values()), out=self.values)
        torch.cat(list(self._gradients.values()), out=self.gradients)

    def scatter(self) -> None:
        """Copy the values back."""
        for name, part in self.named(self.values).items():
            self._values[name].copy_(part)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The parts of a vector (N,) by name; views."""
        parts = vector.split([value.numel() for value in self._values.values()])
        return dict(zip(self._values, parts, strict=True))


class Muon:
    """Muon (torch.optim.Muon; Jordan 2024, kellerjordan.github.io/posts/muon) over a drafter's matrices with float32
    masters, its step scaled to the size of AdamW's (Liu et al. 2025, arXiv 2502.16982, section 2.2), and AdamW over the
    norms, at its rate by `muon_ratio`.

    Fusion's matrix is among them: it is a hidden layer's, no embedding or head, which Muon is not for; so does
    speculators. Queries, keys and values are three matrices, though they lie in one: made orthogonal together, what is
    large in one would decide how far the others go (Jordan 2024 found them better apart).

    Nothing is waited for. Temporary memory is that of a few copies of the largest matrix; the state is 4 bytes a weight
    less than AdamW's.
    """

    def __init__(
        self, flat: FlatWeights, config: OptimizerConfig, update: Callable[..., Any] = adamw, *, steps: int
    ) -> None:
        """As `AdamW`'s; `update` is for the norms."""
        self._config, self._steps = config, steps
        values, gradients = flat.named(flat.values), flat.named(flat.gradients)
        norms = [name for name, value in values.items() if value.ndim < 2]
        self._gathered = Gathered({n: values[n] for n in norms}, {n: gradients[n] for n in norms})
        slower = replace(config, lr=config.lr / config.muon_ratio)
        self._adamw = AdamW(self._gathered, slower, update, steps=steps)
        self._matrices = {
            name: Matrix(value, gradients[name], value.float(), torch.zeros_like(value, dtype=torch.float32))
            for name, value in values.items()
            if value.ndim == 2
        }
        self._muon = torch.optim.Muon(
            [each.weights for each in self._matrices.values()],
            lr=config.lr,
            weight_decay=config.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        for each in self._matrices.values():
            self._muon.state[each.weights]["momentum_buffer"] = each.momentum

    def step(self, step: int, norm: Tensor) -> float:
        """Take `step` (from 0) with the gradients there are, whose norm is the scalar `norm`; the rate that the
        matrices took it with. With a norm that is not finite weights and state stay as they are."""
        lr = rate(step, self._steps, self._config)
        self._gathered.gather()
        self._adamw.step(step, norm)
        self._gathered.scatter()
        self._run(norm, lr)
        return lr

    def warm(self) -> None:
        """Run everything once, changing nothing."""
        self._adamw.warm()
        self._run(torch.full_like(self._gathered.values[0], math.inf, dtype=torch.float32), 0.0)

    def _run(self, norm: Tensor, lr: float) -> None:
        """Step one matrix after another: torch's Muon passes over what has no gradient.

        Its step always changes what it is given, and asking whether the norm is finite would be waiting for the device.
        So where it is not, the gradient is the momentum, which leaves the momentum as it is, and the weights are put
        back from a copy: 20 bytes of memory traffic a weight, little beside the iterations.
        """
        sound = norm.isfinite()
        scale = (self._config.clip / norm).clamp(max=1.0)
        set_rate([self._muon], lr)
        for each in self._matrices.values():
            before = each.weights.clone()
            each.weights.grad = torch.where(sound, each.gradients.float() * scale, each.momentum)
            self._muon.step()
            each.weights.grad = None
            torch.where(sound, each.weights, before, out=each.weights)
            each.values.copy_(each.weights)

    def tensors(self) -> dict[str, Tensor]:
        """The state by name: `<parameter>/<entry>`, and AdamW's `count`."""
        entries = self._entries()
        named = {f"{name}/{entry}": part for entry, parts in entries.items() for name, part in parts.items()}
        return {**self._adamw.tensors(), **named}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        self._adamw.restore(saved)
        for entry, parts in self._entries().items():
            for name, part in parts.items():
                part.copy_(saved[f"{name}/{entry}"])

    def _entries(self) -> dict[str, dict[str, Tensor]]:
        momenta = {name: each.momentum for name, each in self._matrices.items()}
        masters = {name: each.weights for name, each in self._matrices.items() if each.weights is not each.values}
        return {"momentum": momenta, "master": masters}
