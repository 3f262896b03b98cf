"""The operations of a container, by the hop that leads into it."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.errors import UsageError
from dflash.hosts.chain import Docker, Hop, Incus, Lxc, Lxd, Pct
from dflash.provision.container import ContainerSpec
from dflash.provision.operation import Operation
from dflash.provision.operations import docker, incus, lxc, pct
from dflash.provision.operations.driver import Driver


def on_host(hop: Hop, spec: ContainerSpec) -> Sequence[Operation]:
    """What to do on the machine that has the container. Raises UsageError for a hop that is none."""
    match hop:
        case Pct():
            return (pct.Container(hop, spec),)
        case Lxc():
            return (lxc.Container(hop, spec),)
        case Incus() | Lxd():
            return (incus.Container(hop, spec),)
        case Docker():
            return (docker.Container(hop, spec),)
        case _:
            cure = "lead its chain into one, or declare no container"
            raise UsageError(f"{hop} is no container", where="container", cure=cure)


def inside(spec: ContainerSpec) -> Sequence[Operation]:
    """What to do in the container, once it runs."""
    return (Driver(spec),)
