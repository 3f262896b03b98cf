"""A network namespace as the place of a caller, whose link to this machine can be cut."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from tests.lab.service import need

NAME, NEAR, FAR = "dflash-far", "10.231.7.1", "10.231.7.2"


@dataclass(frozen=True)
class Link:
    """The way from the namespace to this machine, which is at `address` from there."""

    address: str

    def inside(self, *words: str) -> list[str]:
        """A command, run in the namespace."""
        return ["ip", "netns", "exec", NAME, *words]

    def cut(self) -> None:
        """From here on nothing passes, and nobody is told."""
        ip("link", "set", NAME, "down")

    def mend(self) -> None:
        """Everything passes again."""
        ip("link", "set", NAME, "up")


@contextlib.contextmanager
def link() -> Iterator[Link]:
    """Make the namespace and the link; both are gone afterwards."""
    need(["ip"], ["iproute2"])
    ip("netns", "add", NAME)
    try:
        ip("link", "add", NAME, "type", "veth", "peer", "name", "near", "netns", NAME)
        ip("addr", "add", f"{NEAR}/30", "dev", NAME)
        ip("link", "set", NAME, "up")
        ip("-n", NAME, "addr", "add", f"{FAR}/30", "dev", "near")
        ip("-n", NAME, "link", "set", "near", "up")
        ip("-n", NAME, "link", "set", "lo", "up")
        yield Link(NEAR)
    finally:
        for pid in subprocess.run(["ip", "netns", "pids", NAME], capture_output=True, check=False).stdout.split():
            with contextlib.suppress(ProcessLookupError):  # sessions whose connection was cut
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "link", "del", NAME], check=False, capture_output=True)
        ip("netns", "del", NAME)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
