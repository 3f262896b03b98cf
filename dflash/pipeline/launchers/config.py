"""What a step's `launcher` declares. Where workers run decides nothing about what they compute, so it is in no key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dflash.errors import UsageError
from dflash.training.config import TrainConfig, check_least


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

    def __post_init__(self) -> None:
        if not 0 < self.port <= 65535:
            raise ValueError(f"port is from 1 to 65535, not {self.port}")


@dataclass(frozen=True)
class Slurm:
    """A process a worker, in a Slurm job of `nodes` nodes that share the run's root: the same number of workers on
    each, and on each as many GPUs. What is left out is as the cluster has it. A wait in the queue counts for the step's
    `timeout`.

    `time_limit` is in Slurm's own form ("90", "12:00:00", "1-12:00:00"), and so is `memory` ("200G"; "0": all that a
    node has). `save_s` seconds before the time is up the training saves a checkpoint, from which the next job goes on.
    `gpu_type` names GPUs as the cluster does. `options` go to sbatch as they are.
    """

    nodes: int = 1
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    time_limit: str = ""
    memory: str = ""
    cpus_per_worker: int = 1
    gpu_type: str = ""
    save_s: int = 120
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_least(self, 1, "nodes", "cpus_per_worker")
        if not 0 < self.save_s <= 65535:
            raise ValueError(f"save_s is from 1 to 65535 seconds, not {self.save_s}")
        if self.time_limit and not re.fullmatch(r"(\d+-)?\d+(:\d\d){0,2}", self.time_limit, re.ASCII):
            raise ValueError(
                f'time_limit is as Slurm has it, say "90" (minutes) or "12:00:00", not "{self.time_limit}"'
            )
        for option in self.options:
            name = option.partition("=")[0]
            if not name.startswith("--"):
                raise ValueError(f'an option is one word that begins with "--", as --reservation=night, not "{option}"')
            if _OURS.fullmatch(name):
                raise ValueError(f"{name} is for the launcher to set")


_OURS = re.compile(
    "--(array|chdir|cpus-per-task|dependency|error|export|gpus|gpus-per-node|input|job-name|nodes|no-requeue|ntasks|"
    "ntasks-per-node|open-mode|output|parsable|requeue|signal|wait|wrap)"
)
"""Options of sbatch with which this launcher would not know its job any more, or its job not itself."""


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
