"""Workers as processes of one torchrun on the machine of the step."""

from __future__ import annotations

from typing import Any

from dflash.pipeline.launchers.launcher import TrainingJob
from dflash.progress import Progress
from dflash.training.launching import train_in_processes


class TorchrunLauncher:
    """A fresh torchrun for each attempt: its own restarts can hang (pytorch#135712)."""

    def train(self, job: TrainingJob, progress: Progress) -> dict[str, Any]:
        """As `Launcher.train`."""
        return train_in_processes(
            job.config, job.target, job.rows, job.out, progress, heldout=job.heldout, warm_only=True
        )
