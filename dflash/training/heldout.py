"""The held-out micro-batches of a training: when they are gone through, and who makes which for whom.

Like the schedule, and by it, a pure function: targets run ahead of the drafters, and nobody is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dflash.training.batches import Batches, MicroBatch
from dflash.training.config import TrainConfig
from dflash.training.packing import Rows
from dflash.training.schedule import Assignment, work_of

SEED = 0
"""Draws anchors, and rows where there are more than are gone through: the same whatever the training's seed is, so that
the figures of two trainings compare."""


class HeldOut:
    """Rows that are never trained on, as micro-batches of the training's shapes, the same ones at each evaluation."""

    def __init__(self, packed: Mapping[int, Rows], config: TrainConfig) -> None:
        """`packed` are rows by bucket; there may be none."""
        self._config = config
        self._batches: Batches | None = None
        if config.evaluate_every and any(len(part) for part in packed.values()):
            self._batches = Batches(packed, rows=config.rows, anchors=config.anchors, seed=SEED, once=True)

    def __len__(self) -> int:
        """The number of micro-batches."""
        return min(self._batches.per_epoch, self._config.evaluate_batches) if self._batches else 0

    def due(self, done: int) -> bool:
        """Whether all are gone through when `done` steps are."""
        config = self._config
        return len(self) > 0 and (done % config.evaluate_every == 0 or done == config.steps)

    def work_of(self, rank: int) -> Iterator[tuple[Assignment, MicroBatch]]:
        """What concerns a worker, in order: dealt out as to the first steps of a training that has no more."""
        topology = self._config.topology
        for step in range(-(-len(self) // topology.drafters)):
            for each in work_of(rank, step, topology):
                if self._batches is not None and each.index < len(self):
                    yield each, self._batches[each.index]
