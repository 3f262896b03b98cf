"""Detached jobs elsewhere that are held from here: their lines are heard, and they end when nobody holds them.

Each has a lease, a file that is touched again and again; what runs there ends when that was not done for long
(`keep` in node.py). Threads are daemons: a host that does not answer holds nobody up.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from dflash.errors import DFlashError, UsageError
from dflash.hosts import jobs
from dflash.hosts.failures import HostError
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach, reaching_again

LEASE_S = 15.0
"""How often a lease is renewed."""

MARGIN_S = 60.0
"""How much longer than jobs.PATIENCE_S a host goes on that nobody asks for: it is first given up from here."""

SAVE_S = 100.0
"""How long what runs there may take to save what it has: less than a runner gives to its step."""

GRACE_S = 5.0
"""How long processes may take to end, once they are told to."""

persistent = reaching_again(5, most_s=5.0)


def beside(body: Callable[..., object], *words: Any) -> threading.Thread:
    """Begin `body` in a thread of its own."""
    thread = threading.Thread(target=body, args=words, name=body.__name__, daemon=True)
    thread.start()
    return thread


def hear(host: Host, job: str, put: Callable[[str | jobs.Job | DFlashError], object]) -> None:
    """Give each line of a job's log to `put` as it comes, and last the job as it ended, or why that is not known."""
    rest = b""

    def take(data: bytes) -> None:
        nonlocal rest
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            put(line.decode(errors="replace").rstrip("\r"))

    try:
        ended: jobs.Job | DFlashError = jobs.follow(host, job, take)
    except DFlashError as failure:
        ended = failure
    if rest:
        take(b"\n")
    put(ended)


def renew(host: Host, lease: str, over: threading.Event) -> None:
    """Touch a lease until `over`, however often the connection breaks."""
    while not over.is_set():
        with contextlib.suppress(HostError), reach(host.chain) as connection:
            while not over.wait(LEASE_S):
                connection.run(["touch", "-c", lease])
        over.wait(1.0)


def touch(host: Host, path: str) -> None:
    """Make a file there, which asks for something; a host that can not be reached is not asked."""

    @persistent
    def attempt() -> None:
        with reach(host.chain) as connection:
            connection.run(["touch", path])

    with contextlib.suppress(HostError):
        attempt()


def end(host: Host, job: str, alone: float = 0.0) -> None:
    """End every process of a job, its first one alone for `alone` seconds; one that never started, or is on a host that
    can not be reached, is left to its lease."""

    @persistent
    def attempt() -> None:
        with reach(host.chain) as connection:
            jobs.stop(connection, host, job, GRACE_S, alone)

    with contextlib.suppress(HostError, UsageError):
        attempt()
