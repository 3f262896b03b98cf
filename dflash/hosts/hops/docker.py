"""A running Docker container."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.hosts.chain import Docker
from dflash.hosts.failures import ContainerMissing, ContainerStopped, HostError, Unreachable


def wrap(hop: Docker, argv: Sequence[str]) -> list[str]:
    """`-i` keeps standard input open; no `-t`, so the streams stay apart."""
    return ["docker", "exec", "-i", hop.name, *argv]


def classify(hop: Docker, layer: str, status: int | None, stderr: str) -> HostError | None:
    """The client says on standard error what the daemon answered."""
    if "No such container" in stderr:
        return ContainerMissing(f"there is no container {hop.name}", layer=layer)
    if "is not running" in stderr:
        return ContainerStopped(f"{hop.name} does not run", layer=layer, cure=f"docker start {hop.name} there")
    if "Cannot connect to the Docker daemon" in stderr or "permission denied" in stderr:
        return Unreachable("the Docker daemon does not answer this user", layer=layer)
    return None
