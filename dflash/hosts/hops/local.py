"""This machine: no way to go."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.hosts.chain import Local
from dflash.hosts.failures import HostError


def wrap(hop: Local, argv: Sequence[str]) -> list[str]:
    """The command as it is."""
    return list(argv)


def classify(hop: Local, layer: str, status: int | None, stderr: str) -> HostError | None:
    """Nothing can fail in not moving."""
    return None
