"""The lab of the hosts room: one sshd, one container, for all its tests; and nothing may be left by any of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash.hosts.chain import parse_chain
from dflash.hosts.connection import Connection
from dflash.hosts.reach import reach
from tests.lab.lxc import container
from tests.lab.service import wait_until
from tests.lab.sshd import Sshd, sshd

NUMBER = "731"


@pytest.fixture(scope="session")
def lab_sshd() -> Iterator[Sshd]:
    with sshd() as running:
        yield running


@pytest.fixture(scope="session")
def lab_container() -> Iterator[str]:
    """A container whose name is a number, so that lxc:, and pct: by the stand-in, both find it."""
    with container(NUMBER) as name:
        yield name


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A test leaves nothing: no thread, child process or descriptor here, no agent, command or script there.

    There is on this machine, too: what runs in a container is seen from outside it."""
    before = _here(), _there()
    yield
    with contextlib.suppress(AssertionError):
        wait_until(lambda: (_here(), _there()) == before, "the end of everything", 5)
    assert _here() == before[0], threading.enumerate()
    assert _there() == before[1]


def _here() -> tuple[int, int, list[str]]:
    pid = os.getpid()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return threading.active_count(), len(os.listdir("/proc/self/fd")), sorted(children)


def _there() -> tuple[set[str], set[Path]]:
    """Agents with all that they started, by the variable that they set; and folders of scripts."""
    processes = set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            marked = b"DFLASH_AGENT=" in (place / "environ").read_bytes()
            if marked or any(word.startswith(b"dflash-") for word in (place / "cmdline").read_bytes().split(b"\0")):
                processes.add(place.name)
    roots = [Path("/"), Path(f"/var/lib/lxc/{NUMBER}/rootfs")]
    scripts = {found for root in roots for found in (root / "tmp").glob("dflash-" + "[0-9a-f]" * 16)}
    return processes, scripts


def connect(chain: str) -> Connection:
    return reach(parse_chain(chain))


def need_program(name: str) -> str:
    found = shutil.which(name)
    assert found, name
    return found
