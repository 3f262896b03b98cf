"""Which workers of a training are on which of several hosts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.errors import UsageError
from dflash.hosts.inventory import Host
from dflash.training.config import Topology, TrainConfig


def room_of(hosts: Sequence[Host], config: TrainConfig) -> list[int]:
    """How many workers each host has room for: one a GPU, or on CPUs an equal share.

    Raises UsageError for a host of which nobody says how many GPUs it has.
    """
    if config.device == "cpu":
        return [-(-config.topology.size // len(hosts))] * len(hosts)
    if unknown := [host.name for host in hosts if not host.gpus]:
        cure = "give its gpus in hosts.yaml"
        raise UsageError(f"how many GPUs {unknown[0]} has is not known", where="launcher.hosts", cure=cure)
    return [host.gpus for host in hosts]


def shares(topology: Topology, room: Sequence[int]) -> list[int]:
    """How many workers each host gets, which has `room` for so many, in the order of ranks: targets, then drafters.

    All workers of one target are on one host, since they speak to each other at every layer; and so are all drafters,
    which sum their gradients at every step, if a host has room for them beside or after the last target.

    Raises UsageError when there is not room enough.
    """
    each, left, counts = topology.target_gpus, len(topology.target_ranks), []
    for size in room:
        counts.append(min(left, size - size % each))
        left -= counts[-1]
    first = max((number for number, count in enumerate(counts) if count), default=0)
    free = [size - count for size, count in zip(room, counts, strict=True)]
    drafters = topology.drafters
    together = next((number for number in range(first, len(room)) if free[number] >= drafters), None)
    for number in range(first, len(room)) if together is None else [together]:
        taken = min(free[number], drafters)
        counts[number] += taken
        drafters -= taken
    if left or drafters:
        whole = f", {each} for each target on one host" if each > 1 else ""
        there = " + ".join(map(str, room))
        raise UsageError(
            f"{topology.size} workers need as many GPUs{whole}, and the hosts have {there}",
            where="launcher.hosts",
            cure="name more hosts, or choose a smaller split with --set train.topology.targets=… and .drafters=…",
        )
    return counts


def are_together(topology: Topology, counts: Sequence[int]) -> bool:
    """Whether all drafters are on one host."""
    last = next(count for count in reversed(counts) if count)
    return last >= topology.drafters
