"""The LXD hop, on a real daemon; Incus's client has the same form."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash.hosts.failures import ContainerMissing, ContainerStopped, HostError, Unreachable
from tests.hosts.conftest import connect
from tests.hosts.test_connection import running
from tests.hosts.test_reach import echoes
from tests.lab.lxd import create, install_incus, lxc, lxd_instance
from tests.lab.service import wait_until

pytestmark = pytest.mark.nightly

LITTER = ["sh", "-c", "setsid sleep 984.731 >/dev/null 2>&1 & sleep 0.2; echo up"]


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    with lxd_instance() as instance:
        yield instance


def failure_of(chain: str) -> HostError:
    with pytest.raises(HostError) as raised:
        connect(chain).close()
    assert raised.value.layer == chain
    return raised.value


def test_bytes_words_and_status_pass_through(name: str):
    with connect(f"lxd:{name}") as connection:
        assert connection.hello.host == name
        result = connection.run(["sh", "-c", 'printf %s "$1"; cat; exit 9', "sh", b"it's \xff$(id)"], stdin=b"\0\xff")
        echoes(connection, [b"$(id)", b"it's", b"\xff\n", b""], b"a;b\xfe", b"\0\xff\r\n")
    assert (result.status, result.stdout) == (9, b"it's \xff$(id)\0\xff")


def test_three_megabytes_come_back_whole(name: str):
    data = os.urandom(3_000_000)
    with connect(f"lxd:{name}") as connection:
        assert connection.run(["cat"], stdin=data).stdout == data


@pytest.mark.parametrize("remote", ["", "local:"])
def test_incus_has_the_same_form(name: str, remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", install_incus(tmp_path))
    with connect(f"incus:{remote}{name}") as connection:
        echoes(connection, [b"$(id)", b"it's", b"\xff"], b"a;b", b"\0\xff")
    failure = failure_of(f"incus:{remote}nobody-home")
    assert isinstance(failure, ContainerMissing)


def test_an_instance_that_does_not_exist(name: str):
    failure = failure_of("lxd:nobody-home")
    assert isinstance(failure, ContainerMissing)
    assert str(failure) == "lxd:nobody-home: there is no lxd:nobody-home"


def test_an_instance_that_does_not_run(name: str):
    create("dflash-lab-stopped", "--empty")
    try:
        failure = failure_of("lxd:dflash-lab-stopped")
    finally:
        lxc("delete", "dflash-lab-stopped")
    assert isinstance(failure, ContainerStopped)
    assert failure.cure == "lxc start dflash-lab-stopped there"


def test_an_instance_that_is_frozen_is_said_to_be(name: str):
    lxc("pause", name)
    try:
        failure = failure_of(f"lxd:{name}")
    finally:
        lxc("start", name)
    assert isinstance(failure, ContainerStopped)
    assert "is frozen" in str(failure)


def test_an_instance_without_sh_is_not_said_to_be_missing(name: str):
    shell = Path(os.environ["LXD_DIR"], "storage-pools/default/containers", name, "rootfs/usr/bin/sh")
    hidden = shell.with_name("sh.hidden")
    shell.rename(hidden)
    try:
        failure = failure_of(f"lxd:{name}")
    finally:
        hidden.rename(shell)
    assert isinstance(failure, Unreachable)
    assert "has no sh" in str(failure)


def test_a_remote_that_nobody_added_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", install_incus(tmp_path))
    failure = failure_of(f"incus:elsewhere:{name}")
    assert isinstance(failure, Unreachable)
    assert 'The remote "elsewhere" doesn\'t exist' in str(failure)


def test_a_daemon_that_does_not_answer(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LXD_DIR", "/nowhere")
    failure = failure_of(f"lxd:{name}")
    assert isinstance(failure, Unreachable)
    assert "the daemon does not answer this user (/nowhere/unix.socket: connect: no such file" in str(failure)


def test_what_runs_inside_ends_with_the_connection(name: str):
    with connect(f"lxd:{name}") as connection:
        assert connection.run(LITTER).stdout == b"up\n"
        assert len(running("984.731")) == 1
    assert running("984.731") == []


def test_what_runs_inside_ends_when_the_client_is_killed(name: str):
    """LXD kills the process that it was told to run when its client dies."""
    with connect(f"lxd:{name}") as connection:
        assert connection.run(LITTER).stdout == b"up\n"
        (client,) = set(running("exec")) & set(running(name))
        os.kill(client, signal.SIGKILL)
        try:
            wait_until(lambda: not running("984.731"), "the end of what ran inside", 6)
        finally:
            for survivor in running("984.731"):
                os.kill(survivor, signal.SIGKILL)
