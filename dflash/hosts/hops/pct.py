"""A Proxmox container, by `pct exec`, which execs lxc-attach and adds no shell."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.hosts.chain import Pct
from dflash.hosts.failures import ContainerMissing, ContainerStopped, HostError
from dflash.hosts.hops import lxc


def wrap(hop: Pct, argv: Sequence[str]) -> list[str]:
    """The words after `--` reach the container untouched."""
    return ["pct", "exec", str(hop.id), "--", *argv]


def classify(hop: Pct, layer: str, status: int | None, stderr: str) -> HostError | None:
    """pct's own words, then those of the lxc-attach that it becomes."""
    if "does not exist" in stderr:
        return ContainerMissing(f"this node has no container {hop.id}", layer=layer, cure="see `pct list` there")
    if "not running" in stderr:
        return ContainerStopped(f"container {hop.id} does not run", layer=layer, cure=f"pct start {hop.id} there")
    return lxc.classify(hop, layer, status, stderr)
