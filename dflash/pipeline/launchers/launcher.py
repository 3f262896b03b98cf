"""The interface of the launchers, and which one a step declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dflash.hosts.inventory import Host
from dflash.pipeline.launchers.config import Slurm, Threads, Torchrun
from dflash.progress import Progress
from dflash.training.config import TrainConfig


@dataclass(frozen=True)
class TrainingJob:
    """One training: a model folder as `target`, files of packed `rows` and `heldout` ones, the step's own folder `out`,
    whose checkpoints are gone on from, the compile `cache` that was proved for it, and the run's `root`, all of them
    on the machine of the step. `env` are the step's own variables, which all workers have."""

    config: TrainConfig
    target: Path
    rows: Path
    heldout: Path
    out: Path
    cache: Path
    root: Path
    env: Mapping[str, str] = field(default_factory=dict)


class Launcher(Protocol):
    """Starts the workers of a training and waits for them."""

    def train(self, job: TrainingJob, progress: Progress) -> dict[str, Any]:
        """Train to the last step; what `Trainer.train` returns. The drafter is in `job.out` then. No worker is left,
        however this ends.

        Raises:
            what `Trainer` raises; StepFailed: a worker died otherwise, or the workers hang.
            KeyboardInterrupt: it was interrupted, has saved what it had, and can go on.
        """


def launcher_for(declared: Any, hosts: Mapping[str, Host]) -> Launcher:
    """The launcher that a step declares (launchers/config.py; None: threads); `hosts` are those that its pipeline
    names. Imported when a step runs, since they import torch."""
    if declared is None or isinstance(declared, Threads):
        from dflash.pipeline.launchers.threads import ThreadLauncher

        return ThreadLauncher()
    if isinstance(declared, Torchrun) and declared.hosts:
        from dflash.pipeline.launchers.several import SeveralHosts

        return SeveralHosts(declared, [hosts[name] for name in declared.hosts])
    if isinstance(declared, Torchrun):
        from dflash.pipeline.launchers.torchrun import TorchrunLauncher

        return TorchrunLauncher()
    assert isinstance(declared, Slurm)
    from dflash.pipeline.launchers.slurm import SlurmLauncher

    return SlurmLauncher(declared)
