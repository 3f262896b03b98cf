"""The machines that the steps of a pipeline name, as the machine of the run reaches them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash.hosts.chain import Chain, Local, parse_chain
from dflash.hosts.inventory import Host, find_host
from dflash.pipeline.launchers.config import Torchrun
from dflash.pipeline.schema import Pipeline, Step


def named(pipeline: Pipeline) -> Iterator[str]:
    """Each name, or chain, of a host in a pipeline, once."""
    names = []
    for step in pipeline.steps:
        names += [step.host] if step.host else []
        names += step.launcher.hosts if isinstance(step.launcher, Torchrun) else []
    yield from dict.fromkeys(names)


def works_here(step: Step) -> bool:
    """Whether the work of a step is done on the machine of the run, which then needs the GPUs for it."""
    return not step.host and not (isinstance(step.launcher, Torchrun) and step.launcher.hosts)


def machines_of(pipeline: Pipeline, here: Host, inventory: Path) -> dict[str, Host]:
    """The hosts that a pipeline names. The machine of the run, `here`, is `local` to itself, whatever it is called.

    Raises ChainError, ConfigError, or UsageError for a name that is not in `inventory`.
    """
    found = {name: find_host(name, inventory) for name in named(pipeline)}
    return {name: _as_seen_from(here, host) for name, host in found.items()}


def _as_seen_from(here: Host, host: Host) -> Host:
    if host.chain == here.chain:
        return replace(host, chain=Chain((Local(),)), root=here.root)
    return host


def is_here(host: Host, root: Path) -> bool:
    """Whether a host is the machine of the run whose root is `root`, and not another root on it."""
    return host.chain.is_local and host.root in (None, str(root))


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
