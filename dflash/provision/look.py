"""Looks at a host and at the end of its chain, at once: a connection and a round trip each.

The host is the machine that has the kernel and the driver: the end of the chain's part before its first container.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dflash.hosts.chain import Chain, Docker, Hop, Incus, Local, Lxc, Lxd, Pct
from dflash.hosts.connection import Connection
from dflash.hosts.failures import HostError
from dflash.hosts.reach import reach
from dflash.provision.checks.order import host_facts, inside_facts
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Facts, read

CONTAINERS = (Pct, Lxc, Incus, Lxd, Docker)


def container_of(chain: Chain) -> Hop | None:
    """The first hop into a container."""
    return next((hop for hop in chain.hops if isinstance(hop, CONTAINERS)), None)


def host_chain(chain: Chain) -> Chain:
    """The way to the machine that has the kernel."""
    container = container_of(chain)
    hops = chain.hops[: chain.hops.index(container)] if container else chain.hops
    return Chain(hops or (Local(),))


@dataclass(frozen=True)
class Way:
    """Open connections to the host and to the end of its chain, which are one where no container is between. `failure`
    is why the end was not reached, `inside` then None."""

    host: Connection
    inside: Connection | None
    failure: HostError | None = None


@contextlib.contextmanager
def opened(chain: Chain) -> Iterator[Way]:
    """The way to a host, open while the block lasts.

    Raises:
        HostError: the host itself was not reached. That a container on it was not is part of the value.
    """
    if container_of(chain) is None:
        with reach(chain) as connection:
            yield Way(connection, connection)
        return
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1, thread_name_prefix="inside") as pool:
        later = pool.submit(_reached, chain)
        try:
            host = stack.enter_context(reach(host_chain(chain)))
        finally:
            inside = later.result()
            if isinstance(inside, Connection):
                stack.enter_context(inside)
        yield Way(host, inside, None) if isinstance(inside, Connection) else Way(host, None, inside)


def _reached(chain: Chain) -> Connection | HostError:
    try:
        return reach(chain)
    except HostError as failure:
        return failure


@dataclass(frozen=True)
class Look:
    """What was found: facts of the host, and of the end of the chain unless that was not reached; `began` is this
    machine's time when they were asked for, in seconds since 1970."""

    host: Facts
    inside: Facts | None
    began: float


def look(way: Way, want: Wanted) -> Look:
    """Ask for everything that the layers judge by what is wanted.

    Raises:
        LostConnection: a stream broke.
    """
    began = time.time()
    if way.inside is way.host:
        known = read(way.host, [*host_facts(want), *inside_facts()])
        return Look(known, known, began)
    with ThreadPoolExecutor(1, thread_name_prefix="inside") as pool:
        later = pool.submit(read, way.inside, inside_facts()) if way.inside else None
        host = read(way.host, host_facts(want))
        return Look(host, later.result() if later else None, began)
