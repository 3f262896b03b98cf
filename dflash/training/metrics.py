"""What a step measured, as sums that add up over ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dflash.training.regions import Labels, Outcome

_LOSS, _GAINED, _BLOCKS, _TOKENS, _STOP = range(5)


class Sums:
    """Names for the places of one flat vector, so that a step's figures cross the ranks in a single sum: five figures,
    for each drafter whether its loss was not finite, and for each slot the right and the valid labels."""

    def __init__(self, block: int, drafters: int) -> None:
        self.slots, self.drafters = block - 1, drafters
        self.size = 5 + drafters + 2 * self.slots

    def of(self, outcome: Outcome, wanted: Labels, tokens: int, *, drafter: int, stop: bool) -> Tensor:
        """The figures (size,) of one micro-batch of the `drafter`-th drafter, float64: exact for counts below 2**53."""
        used = wanted.valid.any(-1)
        loss = outcome.loss.detach().double()
        finite = loss.isfinite()
        figures = torch.zeros(self.size, dtype=torch.double, device=loss.device)
        figures[_LOSS] = loss.nan_to_num(posinf=0.0, neginf=0.0)
        figures[_GAINED] = (outcome.accepted * used).sum()
        figures[_BLOCKS] = used.sum()
        figures[_TOKENS] = tokens
        figures[_STOP] = stop
        figures[5 + drafter] = ~finite
        figures[-2 * self.slots : -self.slots] = (outcome.correct & wanted.valid).sum(0)
        figures[-self.slots :] = wanted.valid.sum(0)
        return figures

    def read(self, total: Tensor) -> dict[str, Any]:
        """The step's figures from the sum over ranks and micro-batches, on the CPU. Losses were divided by the sum of
        all label weights before. `not_finite` are the drafters, from 0, whose loss was not a number."""
        right, valid = total[-2 * self.slots : -self.slots], total[-self.slots :]
        faults = total[5 : 5 + self.drafters]
        return {
            "loss": float(total[_LOSS]) if not faults.any() else float("nan"),
            "accuracy": (right / valid.clamp(min=1)).tolist(),
            "accept_len": float(total[_GAINED]) / max(float(total[_BLOCKS]), 1.0),
            "tokens": int(total[_TOKENS]),
            "stop": bool(total[_STOP]),
            "not_finite": faults.nonzero().flatten().tolist(),
        }


class Reading:
    """A tensor on its way to the host; its device goes on meanwhile."""

    def __init__(self, tensor: Tensor) -> None:
        self._done = torch.cuda.Event() if tensor.is_cuda else None
        if self._done is None:
            self._host = tensor.clone()
        else:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._done.record()

    def wait(self) -> Tensor:
        """The tensor, on the CPU."""
        if self._done is not None:
            self._done.synchronize()
        return self._host


class Step:
    """A finished step whose figures may still be on their way."""

    def __init__(self, number: int, figures: Tensor, norm: Tensor, lr: float) -> None:
        """`number` counts from 1; `figures` are summed over ranks, `norm` is the gradient's."""
        self.number, self._lr = number, lr
        self._reading = Reading(torch.cat((figures, norm.double()[None])))

    def read(self, sums: Sums) -> dict[str, Any]:
        """Its figures, once they are there."""
        read = self._reading.wait()
        return {**sums.read(read[:-1]), "grad_norm": float(read[-1]), "lr": self._lr}
