"""Who makes which micro-batch for whom, in every step: a pure function, so that sends and receives pair up
without a coordinator, runs repeat, and a resumed run goes on as if it had not stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dflash.training.config import Topology


@dataclass(frozen=True)
class Assignment:
    """Micro-batch `index` of a training: the rank that runs the target on it, and the rank that trains on it."""

    index: int
    target: int
    drafter: int


def assignments(step: int, topology: Topology) -> list[Assignment]:
    """The micro-batches of `step`, one a drafter; targets take turns over the whole training."""
    first = step * topology.drafters
    return [
        Assignment(first + place, (first + place) % topology.targets, drafter)
        for place, drafter in enumerate(topology.drafter_ranks)
    ]


def work_of(rank: int, topology: Topology, steps: range) -> Iterator[tuple[int, Assignment]]:
    """The (step, assignment) pairs that concern a worker, in order."""
    for step in steps:
        for assignment in assignments(step, topology):
            if rank in (assignment.target, assignment.drafter):
                yield step, assignment
