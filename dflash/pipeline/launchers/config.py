"""What a step's `launcher` declares. Where workers run decides nothing about what they compute, so it is in no key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Threads:
    """Threads of the step's own process."""


@dataclass(frozen=True)
class Torchrun:
    """A process a worker, by torchrun: on the machine of the step, or on `hosts` of the inventory, one torchrun on each
    of them, which meet on the first at `port`. Workers are shared out in the order of the hosts, by their GPUs."""

    hosts: tuple[str, ...] = ()
    port: int = 29400


@dataclass(frozen=True)
class Slurm:
    """A process a worker, in a Slurm job of `nodes` nodes that share the run's root; `options` go to sbatch as they
    are."""

    nodes: int = 1
    partition: str = ""
    options: tuple[str, ...] = ()


LAUNCHERS: Mapping[str, type] = {"threads": Threads, "torchrun": Torchrun, "slurm": Slurm}
"""By the name that a pipeline uses: `launcher: torchrun`, or `launcher: {kind: torchrun, hosts: [a, b]}`."""
