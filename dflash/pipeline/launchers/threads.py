"""Workers as threads of the step's own process."""

from __future__ import annotations

from typing import Any

from dflash.pipeline.launchers.config import refuse_threads
from dflash.pipeline.launchers.launcher import TrainingJob
from dflash.progress import Progress
from dflash.training.packing import load_rows
from dflash.training.trainer import Trainer


class ThreadLauncher:
    """The default: nothing is started but threads."""

    def train(self, job: TrainingJob, progress: Progress) -> dict[str, Any]:
        """As `Launcher.train`. Raises UsageError for a target that is spread over GPUs."""
        refuse_threads(job.config)
        packed, heldout = load_rows(job.rows), load_rows(job.heldout)
        return Trainer(job.config, job.target, packed, progress, heldout=heldout, warm_only=True).train(job.out)
