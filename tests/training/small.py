"""A training small enough for a test: rows of random bytes, a drafter of one layer, five targets and three drafters.

Also a program, so that a test can kill it: `python -m tests.training.small TARGET OUT BUCKETS CONFIG-JSON [warm]`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from dflash.model.bytelevel import MASK_ID
from dflash.progress import Metric
from dflash.training.config import DraftConfig, OptimizerConfig, Topology, TrainConfig, train_config
from dflash.training.encoding import Encoded
from dflash.training.packing import Rows, pack
from dflash.training.trainer import Trainer

CONFIG = TrainConfig(
    draft=DraftConfig(layers=1, features=2, block=4, mask_token_id=MASK_ID),
    topology=Topology(targets=5, drafters=3),
    optimizer=OptimizerConfig(lr=1e-2),
    rows=1,
    anchors=6,
    gamma=2.0,
    steps=12,
    checkpoint_every=4,
    evaluate_every=5,
    compile=False,
)


def rows(count: int = 17, buckets: Sequence[int] = (32, 48), trainable: bool = True, seed: int = 5) -> dict[int, Rows]:
    """`count` documents of 20 to 48 random bytes, the last two thirds of each trainable."""
    generator = torch.Generator().manual_seed(seed)
    documents = []
    for number in range(count):
        length = 20 + (number * 7) % 29
        tokens = torch.randint(0, 256, (length,), generator=generator, dtype=torch.int32)
        documents.append(Encoded(tokens, (torch.arange(length) >= length // 3) & trainable))
    return pack(documents, buckets)


def held_out(count: int = 7, buckets: Sequence[int] = (32, 48)) -> dict[int, Rows]:
    """Rows that are not among `rows()`, whose number no number of drafters divides."""
    return rows(count, buckets, seed=6)


class Watching:
    """Keeps what a training tells, and can call back at each step."""

    def __init__(self, at_step: Any = None) -> None:
        self.notes: list[str] = []
        self.steps: list[tuple[int, Mapping[str, Metric]]] = []
        self._at_step = at_step

    def update(self, done: int, total: int, metrics: Mapping[str, Metric] | None = None) -> None:
        self.steps.append((done, metrics or {}))
        if self._at_step:
            self._at_step(done)

    def note(self, message: str) -> None:
        self.notes.append(message)


def train(
    target: Path,
    out: Path,
    watching: Watching | None = None,
    packed: Mapping[int, Rows] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Train in this process on `packed` (`rows()`), with `CONFIG` changed by `changes`; measure with `held_out()`."""
    config, packed = replace(CONFIG, **changes), packed or rows()
    heldout = held_out(buckets=sorted(packed))
    return Trainer(config, target, packed, watching or Watching(), heldout=heldout).train(out)


def main() -> int:
    target, out, buckets, config, *warm = sys.argv[1:]
    lengths = json.loads(buckets)
    packed, heldout = rows(buckets=lengths), held_out(buckets=lengths)
    watching = Watching(lambda step: print(step, flush=True))
    settings: dict[str, Any] = {"heldout": heldout, "warm_only": warm == ["warm"]}
    try:
        trainer = Trainer(train_config(json.loads(config)), Path(target), packed, watching, **settings)
        result = trainer.train(Path(out))
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result))
    return 0


def as_json(config: TrainConfig) -> str:
    """A configuration as this program takes it."""
    return json.dumps(asdict(config))


if __name__ == "__main__":
    sys.exit(main())
