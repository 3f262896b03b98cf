"""What each way to share out the workers would cost: seconds a step, from figures that were measured on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash.training.config import Topology

USABLE = 0.95
"""The share of a device's memory that may be planned with: CUDA's context, NCCL's buffers and the gaps between
allocations take the rest."""

ALIKE = 0.01
"""Speeds that differ by less are taken for equal: measurements are no better."""


@dataclass(frozen=True)
class Figures:
    """What the roles of a training need on one device.

    Seconds: `target_s` for the features of a micro-batch, `draft_s` for a drafter's forward and backward pass over one,
    `update_s` for what comes once a step (the gradient's norm and the optimizer). Bytes: `gradient_bytes` are summed
    over drafters, on links of `link_bytes_per_s`; `feature_bytes` are a micro-batch's; `target_bytes` and
    `drafter_bytes` are the peaks of the roles and `memory_bytes` what the device has, all None where that is not known,
    as on a CPU. A micro-batch has `tokens` tokens; `accumulate` of them make a drafter's step, and up to `prefetch`
    wait between a target and a drafter.
    """

    target_s: float
    draft_s: float
    update_s: float
    gradient_bytes: int
    feature_bytes: int
    link_bytes_per_s: float
    tokens: int
    accumulate: int = 1
    prefetch: int = 2
    target_bytes: int | None = None
    drafter_bytes: int | None = None
    memory_bytes: int | None = None

    def sum_s(self, drafters: int) -> float:
        """Seconds to sum the gradient over `drafters`: 2 (M - 1) / M of it goes over each link (Patarasuk and Yuan,
        "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009)."""
        return 2 * (drafters - 1) / drafters * self.gradient_bytes / self.link_bytes_per_s


@dataclass(frozen=True)
class Cost:
    """What one topology would cost. `step_s` is in the steady state; `target_busy` and `drafter_busy` are the parts of
    it in which the roles work. `bytes` is what the worker that needs most needs, and `fits` whether a device has it;
    None where memory is not known."""

    topology: Topology
    step_s: float
    tokens_per_s: float
    target_busy: float
    drafter_busy: float
    bytes: int | None
    fits: bool | None


def cost(figures: Figures, topology: Topology) -> Cost:
    """The cost of `topology`. In a split the roles work at the same time, and the slower one sets the pace; targets
    take turns, so that their part of a step need not be whole micro-batches."""
    made = topology.drafters * figures.accumulate
    target_s = (
        figures.accumulate * figures.target_s if topology.colocated else made * figures.target_s / topology.targets
    )
    drafter_s = figures.accumulate * figures.draft_s + figures.update_s + figures.sum_s(topology.drafters)
    step_s = target_s + drafter_s if topology.colocated else max(target_s, drafter_s)
    needed = _bytes(figures, topology)
    fits = None if needed is None or figures.memory_bytes is None else needed <= USABLE * figures.memory_bytes
    return Cost(topology, step_s, made * figures.tokens / step_s, target_s / step_s, drafter_s / step_s, needed, fits)


def costs(figures: Figures, workers: int) -> list[Cost]:
    """The cost of every split of so many workers, and of all of them colocated; the fastest first."""
    splits = [Topology(targets, workers - targets) for targets in range(workers)]
    return sorted((cost(figures, each) for each in splits), key=lambda each: -each.tokens_per_s)


def proposal(found: Sequence[Cost]) -> Cost | None:
    """The split to train with, of `costs`: the fastest that fits. Of those that are as fast, the one with the fewest
    drafters: its steps are smaller, so the same text gives more of them.

    Colocated workers are proposed only where no split fits, as for one worker. They can come out faster, since nothing
    is left over where the workers do not divide well, but their steps are larger, and little memory stays free for
    longer rows: whoever wants that should choose it.
    """
    fitting = [each for each in found if each.fits is not False]
    splits = [each for each in fitting if not each.topology.colocated]
    best = max((each.tokens_per_s for each in splits), default=0.0)
    fast = [each for each in splits if each.tokens_per_s >= (1 - ALIKE) * best]
    return min(fast or fitting, key=lambda each: each.topology.drafters, default=None)


def _bytes(figures: Figures, topology: Topology) -> int | None:
    """What the worker that needs most needs. Of colocated roles both peaks are taken, though they come in turn."""
    target, drafter = figures.target_bytes, figures.drafter_bytes
    if target is None or drafter is None:
        return None
    if topology.colocated:
        return target + drafter
    return max(target + topology.drafters * figures.prefetch * figures.feature_bytes, drafter)
