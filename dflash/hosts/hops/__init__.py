"""One module a hop: `wrap(hop, argv)` leads a command one hop further, `classify(…)` names a failure of that step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dflash.hosts.chain import Docker, Hop, Incus, Local, Lxc, Lxd, Pct, Ssh, Sudo
from dflash.hosts.failures import HostError
from dflash.hosts.hops import docker, local, lxc, lxd, pct, ssh, sudo

_MODULES: dict[type, Any] = {
    Local: local,
    Ssh: ssh,
    Sudo: sudo,
    Pct: pct,
    Lxc: lxc,
    Lxd: lxd,
    Incus: lxd,
    Docker: docker,
}


def wrap(hops: Sequence[Hop], argv: Sequence[str]) -> list[str]:
    """`argv` led through all of `hops`, outermost first."""
    for hop in reversed(hops):
        step: Callable[[Hop, Sequence[str]], list[str]] = _MODULES[type(hop)].wrap
        argv = step(hop, argv)
    return list(argv)


def probe(hop: Hop) -> list[str] | None:
    """A command for the layer before that tells more about why `hop` could not be entered, if its module has one."""
    ask: Callable[[Hop], list[str]] | None = getattr(_MODULES[type(hop)], "probe", None)
    return ask(hop) if ask else None


def classify(hop: Hop, layer: str, status: int | None, stderr: str) -> HostError | None:
    """What it means that entering `hop` ended with `status` and `stderr`; None when its module does not know."""
    found: HostError | None = _MODULES[type(hop)].classify(hop, layer, status, stderr)
    return found
