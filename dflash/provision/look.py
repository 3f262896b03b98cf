"""Looks at a host and at the end of its chain, at once: a connection and a round trip each.

The host is the machine that has the kernel and the driver: the end of the chain's part before its first container.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from dflash.hosts.chain import Chain
from dflash.hosts.connection import Connection
from dflash.hosts.failures import HostError
from dflash.hosts.reach import reach
from dflash.provision.checks.order import host_facts, inside_facts
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Facts, read

T = TypeVar("T")


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
    if chain.container is None:
        with reach(chain) as connection:
            yield Way(connection, connection)
        return
    later = beside(lambda: reach(chain))
    with contextlib.ExitStack() as stack:
        try:
            host = stack.enter_context(reach(chain.host))
        except HostError:
            with contextlib.suppress(HostError):
                later().close()
            raise
        try:
            way = Way(host, stack.enter_context(later()))
        except HostError as failure:
            way = Way(host, None, failure)
        yield way


def beside(body: Callable[[], T]) -> Callable[[], T]:
    """Begin `body`, and give what waits for its end and its value. By a daemon, not by a pool, which waits for its
    threads: on Ctrl-C the process ends, and a host that does not answer holds nobody up."""
    coming: Future[T] = Future()

    def run() -> None:
        try:
            coming.set_result(body())
        except BaseException as failure:
            coming.set_exception(failure)

    threading.Thread(target=run, name="beside", daemon=True).start()
    return coming.result


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
        known = read(way.host, [*host_facts(want), *inside_facts(want)])
        return Look(known, known, began)
    inside = way.inside
    later = beside(lambda: read(inside, inside_facts(want))) if inside else None
    host = read(way.host, host_facts(want))
    return Look(host, later() if later else None, began)
