"""The machines that the steps of a pipeline name, as the machine of the run reaches them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash.document import Place
from dflash.errors import ConfigError, EnvironmentMismatch, UsageError
from dflash.hosts.chain import Chain, Local, parse_chain
from dflash.hosts.inventory import Host, find_host
from dflash.pipeline.launchers.config import Slurm, Torchrun
from dflash.pipeline.launchers.sharing import room_of, shares
from dflash.pipeline.launchers.slurmqueue import workers_per_node
from dflash.pipeline.schema import Pipeline, Step, error_at
from dflash.training.config import TrainConfig


def named(pipeline: Pipeline) -> dict[str, tuple[Step, Place]]:
    """Each name, or chain, of a host in a pipeline, with the first step that has it and where the step says it."""
    found: dict[str, tuple[Step, Place]] = {}
    for step in pipeline.steps:
        if step.host:
            found.setdefault(step.host, (step, ("host",)))
        for name in _hosts(step):
            found.setdefault(name, (step, ("launcher", "hosts")))
    return found


def works_here(step: Step) -> bool:
    """Whether the work of a step is done on the machine of the run, which then needs the GPUs for it."""
    return not (step.host or isinstance(step.launcher, Slurm) or _hosts(step))


def _hosts(step: Step) -> tuple[str, ...]:
    return step.launcher.hosts if isinstance(step.launcher, Torchrun) else ()


def machines_of(pipeline: Pipeline, here: Host, inventory: Path) -> dict[str, Host]:
    """The hosts that a pipeline names. The machine of the run, `here`, is `local` to itself, whatever it is called.

    Raises ChainError, ConfigError, or UsageError for a name that is not in `inventory`, for one that means this machine
    where the run is on another, and for hosts that have no room for the workers of a training.
    """
    found = {}
    for name, (step, place) in named(pipeline).items():
        try:
            found[name] = _as_seen_from(here, find_host(name, inventory))
        except ConfigError:  # of the inventory
            raise
        except UsageError as failure:
            raise error_at(pipeline, step, place, failure.what, failure.cure, name) from None
    for step in pipeline.steps:
        if _hosts(step) and isinstance(step.config, TrainConfig):
            try:
                workers_by_host(step, found)
            except UsageError as failure:
                raise error_at(pipeline, step, ("launcher", "hosts"), failure.what, failure.cure) from None
    return found


def layouts_of(pipeline: Pipeline, hosts: Mapping[str, Host]) -> dict[str, tuple[int, ...]]:
    """How many workers are on each host of the training that a step prepares for, by the step's name: of those whose
    training is on the GPUs of several hosts, since what is compiled for a GPU has its number there. `hosts` are those
    that the pipeline names.

    Raises UsageError for hosts that have no room for the workers.
    """
    found = {}
    for step in pipeline.steps:
        lender = pipeline.step(step.borrows) if step.borrows else None
        if lender is None or not isinstance(lender.config, TrainConfig) or lender.config.device == "cpu":
            continue
        if len(counts := workers_by_host(lender, hosts)) > 1:
            found[step.name] = counts
    return found


def workers_by_host(step: Step, hosts: Mapping[str, Host]) -> tuple[int, ...]:
    """How many of a training's workers each of its hosts has, in the order of ranks. Raises as `layouts_of`."""
    topology = step.config.topology
    if isinstance(step.launcher, Slurm):
        return (workers_per_node(step.launcher, topology),) * step.launcher.nodes
    if names := _hosts(step):
        counts = shares(topology, room_of([hosts[name] for name in names], step.config))
        return tuple(count for count in counts if count)
    return (topology.size,)


def _as_seen_from(here: Host, host: Host) -> Host:
    if host.chain == here.chain:
        return replace(host, chain=Chain((Local(),)), root=host.root or here.root)
    if host.chain.is_local:
        cure = "name a host that the run's can reach, or leave it out: a step runs where its run does"
        raise UsageError(f"{host.name} is this machine, and the run is on {here.name}", cure=cure)
    return host


def is_here(host: Host, root: Path) -> bool:
    """Whether a host is the machine of the run whose root is `root`, and not another root on it."""
    return host.chain.is_local and host.root in (None, str(root))


def gpus_in_words(count: int) -> str:
    """A number of GPUs, of which there is one at least."""
    return "a GPU" if count == 1 else f"{count} GPUs"


def require_gpus(wanted: Mapping[str, int], devices: Path = Path("/dev")) -> None:
    """Raise EnvironmentMismatch where this machine has fewer GPUs than a step uses at once, `wanted` by its name: else
    it would be told by that step, hours later perhaps."""
    found = sum(1 for _ in devices.glob("nvidia[0-9]*"))
    if lacking := [f"{name} needs {gpus_in_words(count)}" for name, count in wanted.items() if count > found]:
        there = f"has {found}" if found else f"has no {devices}/nvidia0"
        cure = "run it on a GPU host that has them, or set device: cpu for a small model"
        raise EnvironmentMismatch(f"{', '.join(lacking)}, and this machine {there}", cure=cure)


def to_json(hosts: Mapping[str, Host]) -> dict[str, dict[str, Any]]:
    """Plain values."""
    return {
        name: {"name": host.name, "chain": str(host.chain), "root": host.root, "gpus": host.gpus}
        for name, host in hosts.items()
    }


def from_json(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, Host]:
    """What `to_json` gave."""
    return {
        name: Host(each["name"], parse_chain(each["chain"]), each["root"], each["gpus"]) for name, each in plain.items()
    }
