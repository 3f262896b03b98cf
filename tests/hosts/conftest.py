"""The lab of the hosts room: one sshd, one container, for all its tests; and nothing may be left by any of them."""

from __future__ import annotations

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
from tests.lab.sshd import Sshd, sshd

NUMBER = "731"


@pytest.fixture(scope="session")
def lab_sshd() -> Iterator[Sshd]:
    with sshd() as running:
        before = os.environ["HOME"]
        os.environ["HOME"] = str(running.home)
        yield running
        os.environ["HOME"] = before


@pytest.fixture(scope="session")
def lab_container() -> Iterator[str]:
    """A container whose name is a number, so that lxc:, and pct: by the stand-in, both find it."""
    with container(NUMBER) as name:
        yield name


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No thread, no child process and no descriptor is left by a test."""
    threads, descriptors, children = threading.active_count(), _descriptors(), _children()
    yield
    assert threading.active_count() == threads, threading.enumerate()
    assert _descriptors() == descriptors
    assert _children() == children


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _children() -> list[str]:
    pid = os.getpid()
    return sorted(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def connect(chain: str) -> Connection:
    return reach(parse_chain(chain))


def need_program(name: str) -> str:
    found = shutil.which(name)
    assert found, name
    return found
