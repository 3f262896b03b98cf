"""An LXC container, by lxc-attach."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.hosts.chain import Lxc, Pct
from dflash.hosts.failures import ContainerMissing, ContainerStopped, HostError


def wrap(hop: Lxc, argv: Sequence[str]) -> list[str]:
    """`--clear-env`: the environment of the layer before, and its secrets, stay there."""
    return ["lxc-attach", "-n", hop.name, "--clear-env", "--", *argv]


def probe(hop: Lxc) -> list[str]:
    """What to ask the layer before when lxc-attach failed: its own words are the same for stopped and missing."""
    return ["lxc-info", "-n", hop.name, "-s"]


def classify(hop: Lxc | Pct, layer: str, status: int | None, stderr: str) -> HostError | None:
    """lxc-attach ends with 1 whatever is wrong; its words tell."""
    name = str(hop)
    if "doesn't exist" in stderr:
        return ContainerMissing(f"there is no container {name}", layer=layer)
    if "Failed to get init pid" in stderr or "is not running" in stderr:
        return ContainerStopped(f"{name} does not run", layer=layer, cure="lxc-start it there")
    return None
