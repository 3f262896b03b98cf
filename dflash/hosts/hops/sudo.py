"""Another user of the same machine."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.hosts.chain import Sudo
from dflash.hosts.failures import HostError, LoginFailed, Unreachable


def wrap(hop: Sudo, argv: Sequence[str]) -> list[str]:
    """Never asks: a password prompt would wait for ever, or eat the stream."""
    return ["sudo", "-n", "-u", hop.user or "root", "--", *argv]


def classify(hop: Sudo, layer: str, status: int | None, stderr: str) -> HostError | None:
    """sudo ends with 1 when it refuses."""
    if "password is required" in stderr or "terminal is required" in stderr:
        return LoginFailed("sudo asks for a password", layer=layer, cure="allow the user with NOPASSWD in sudoers")
    if "not allowed" in stderr or "not in the sudoers" in stderr:
        return LoginFailed("sudo does not allow it", layer=layer, cure="allow the user in sudoers")
    if "unknown user" in stderr:
        return Unreachable(f"there is no user {hop.user}", layer=layer)
    return None
