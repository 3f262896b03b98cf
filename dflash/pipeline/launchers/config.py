"""What a step's `launcher` declares. Where workers run decides nothing about what they compute, so it is in no key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dflash.errors import UsageError
from dflash.training.config import TrainConfig


@dataclass(frozen=True)
class Threads:
    """Threads of the step's own process."""


@dataclass(frozen=True)
class Torchrun:
    """A process a worker, by torchrun: on the machine of the step, or on `hosts` of the inventory, one torchrun on each
    of them, which meet on the first at `port`. Workers are shared out in the order of the hosts, by their GPUs.
    `address` is where the others reach the first; left out, it is the first of its own that all of them do reach."""

    hosts: tuple[str, ...] = ()
    port: int = 29400
    address: str = ""


@dataclass(frozen=True)
class Slurm:
    """A process a worker, in a Slurm job of `nodes` nodes that share the run's root; `options` go to sbatch as they
    are."""

    nodes: int = 1
    partition: str = ""
    options: tuple[str, ...] = ()


LAUNCHERS: Mapping[str, type] = {"threads": Threads, "torchrun": Torchrun, "slurm": Slurm}
"""By the name that a pipeline uses: `launcher: torchrun`, or `launcher: {kind: torchrun, hosts: [a, b]}`."""


def to_json(launcher: Any) -> dict[str, Any] | None:
    """What a step declares, as plain values."""
    name = next((name for name, kind in LAUNCHERS.items() if isinstance(launcher, kind)), None)
    return {"kind": name, **asdict(launcher)} if name else None


def from_json(plain: Mapping[str, Any] | None) -> Any:
    """What `to_json` gave."""
    if plain is None:
        return None
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return LAUNCHERS[plain["kind"]](**{name: value for name, value in fields.items() if name != "kind"})


def refuse_threads(config: TrainConfig) -> None:
    """Raise UsageError for a training whose workers can not be threads of one process."""
    if config.topology.target_gpus > 1:
        raise UsageError(
            "a target that is spread over GPUs is one of processes",
            where="train.topology.target_gpus",
            cure="give the step launcher: torchrun",
        )
