"""An LXD or Incus instance; both programs have the same form."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.hosts.chain import Incus, Lxd
from dflash.hosts.failures import ContainerMissing, ContainerStopped, HostError, Unreachable


def wrap(hop: Lxd | Incus, argv: Sequence[str]) -> list[str]:
    """`-T`: no terminal in between, which would merge the streams and add carriage returns."""
    if isinstance(hop, Incus):
        name = f"{hop.remote}:{hop.name}" if hop.remote else hop.name
        return ["incus", "exec", name, "-T", "--", *argv]
    return ["lxc", "exec", hop.name, "-T", "--", *argv]


def classify(hop: Lxd | Incus, layer: str, status: int | None, stderr: str) -> HostError | None:
    """The client's `Error:` line tells."""
    said = stderr.lower()
    if "error:" not in said:
        return None
    if "not running" in said:
        return ContainerStopped(f"{hop} does not run", layer=layer, cure="start it")
    if "not found" in said:
        return ContainerMissing(f"there is no {hop}", layer=layer)
    return Unreachable(stderr.strip().splitlines()[-1], layer=layer)
