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
from tests.conftest import MARK
from tests.lab.lxc import container
from tests.lab.service import wait_until
from tests.lab.sshd import Sshd, sshd

NUMBER = "731"
OURS = f"{MARK}={os.getpid()}".encode()


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
        wait_until(lambda: _here() == before[0] and not _there() - before[1], "the end of everything", 5)
    assert _here() == before[0], threading.enumerate()
    assert not _there() - before[1]


def _here() -> tuple[int, int, list[str]]:
    pid = os.getpid()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return threading.active_count(), len(os.listdir("/proc/self/fd")), sorted(children)


def _there() -> set[str]:
    """Agents with all that they started, by the variable that they set, and not those of other tests that run; and
    folders of scripts."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (place / "environ").read_bytes().split(b"\0")
            others = any(each.startswith(f"{MARK}=".encode()) and each != OURS for each in variables)
            marked = any(each.startswith(b"DFLASH_AGENT=") for each in variables)
            named = any(word.startswith(b"dflash-") for word in (place / "cmdline").read_bytes().split(b"\0"))
            if (marked or named) and not others:
                found.add(str(place))
    folders = [Path("/tmp"), Path(f"/var/lib/lxc/{NUMBER}/rootfs/tmp")]
    return found | {str(script) for folder in folders for script in folder.glob("dflash-" + "[0-9a-f]" * 16)}


def connect(chain: str) -> Connection:
    return reach(parse_chain(chain))


def need_program(name: str) -> str:
    found = shutil.which(name)
    assert found, name
    return found
