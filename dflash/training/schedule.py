"""Who makes which micro-batch for whom, in every step: a pure function, so that sends and receives pair up
without a coordinator, runs repeat, and a resumed run goes on as if it had not stopped."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.training.config import Topology


@dataclass(frozen=True)
class Assignment:
    """Micro-batch `index` of a training: the rank that runs the target on it, and the rank that trains on it; the same
    one where both are colocated."""

    index: int
    target: int
    drafter: int


def assignments(step: int, topology: Topology, accumulate: int = 1) -> list[Assignment]:
    """The micro-batches of `step`, `accumulate` a drafter, in turns; targets take turns over the whole training."""
    first = step * topology.drafters * accumulate
    return [
        Assignment(index, target_of(index, drafter, topology), drafter)
        for index, drafter in enumerate(topology.drafter_ranks * accumulate, first)
    ]


def target_of(index: int, drafter: int, topology: Topology) -> int:
    """The rank that runs the target on micro-batch `index`, on which `drafter` trains."""
    return drafter if topology.colocated else topology.target_groups[index % topology.targets][0]


def work_of(rank: int, step: int, topology: Topology, accumulate: int = 1) -> list[Assignment]:
    """The micro-batches of `step` that concern a worker, in order; all of a spread target's workers run it."""
    leader = next((group[0] for group in topology.target_groups if rank in group), rank)
    return [each for each in assignments(step, topology, accumulate) if leader in (each.target, each.drafter)]
