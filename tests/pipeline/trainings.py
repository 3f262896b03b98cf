"""A whole training that takes seconds, as a pipeline's file, and one that waits where it is told to."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash.pipeline.kinds import StepInputs
from dflash.pipeline.steps import KINDS
from dflash.progress import Progress

_CHECK = """\
  - name: check
    uses: check
    with: {min_disk_gib: 0.5, min_memory_gib: 0.5}
"""
_TRAINING = """\
  - name: target
    uses: target
    with: {layers: 6, hidden: 32, intermediate: 64, heads: 2, kv_heads: 1, window: 32, rows: 2, steps: 4,
           checkpoint_every: 2, corpus_bytes: 600000, threads: 1}
  - name: data
    uses: data
    needs: [target]
    with: {file: talk.jsonl, heldout: 4, buckets: [96], block: 4}
  - name: prewarm
    uses: prewarm
    needs: [target, data]
    with: {for_step: train}
  - name: train
    uses: train
    needs: [target, data, prewarm]
    with:
      draft: {layers: 1, features: 2, block: 4, mask_token_id: 260}
      topology: {targets: 1, drafters: 1}
      rows: 1
      anchors: 8
      gamma: 2.0
"""
_EXPORT = """\
  - name: export
    uses: export
    needs: [train]
"""


def tiny(steps: int, checkpoint_every: int = 10, *, compiles: bool = False, is_whole: bool = True) -> str:
    """From target to training on `talk.jsonl`; a whole one has a check before and an export after it."""
    more = f"      steps: {steps}\n      checkpoint_every: {checkpoint_every}\n      compile: {str(compiles).lower()}\n"
    parts = (_CHECK, _TRAINING + more, _EXPORT) if is_whole else (_TRAINING + more,)
    return "name: tiny\nsteps:\n" + "".join(parts)


HOLD = "hold"
"""A file of a root that names the step after which trainings there wait; the log has its row then."""


@dataclass
class _Held:
    """Keeps whoever tells of its progress waiting; it is a thread of the training, which goes no further."""

    progress: Progress
    file: Path

    def update(self, done: int, total: int, metrics: Mapping[str, Any] | None = None) -> None:
        self.progress.update(done, total, metrics)
        while self.file.exists() and done >= int(self.file.read_text()):
            time.sleep(0.02)

    def note(self, message: str) -> None:
        self.progress.note(message)


def _train(step: StepInputs) -> dict[str, Any]:
    return KINDS["train"].run(replace(step, progress=_Held(step.progress, step.root / HOLD)))


HELD = {**KINDS, "train": replace(KINDS["train"], run=_train)}
