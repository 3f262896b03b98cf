"""The Docker hop, on a real engine, under the hops of a depth-four chain too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.hosts.connection import Connection
from dflash.hosts.failures import ContainerMissing, ContainerStopped, HostError, Unreachable
from tests.hosts.conftest import connect, need_program
from tests.hosts.test_connection import running
from tests.hosts.test_reach import echoes, hostile, quiet
from tests.lab.docker import docker, docker_container
from tests.lab.lxc import container
from tests.lab.service import wait_until
from tests.lab.sshd import SHELLS, Sshd

pytestmark = pytest.mark.nightly

WITH_DOCKER = "732"
LOGINS = ["lab", *(f"lab-{shell}" for shell in SHELLS)]


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    with docker_container() as running:
        yield running


def failure_of(chain: str) -> HostError:
    with pytest.raises(HostError) as raised:
        connect(chain).close()
    return raised.value


def test_bytes_words_and_status_pass_through(name: str):
    with connect(f"docker:{name}") as connection:
        result = connection.run(["sh", "-c", 'printf %s "$1"; cat; exit 9', "sh", b"it's \xff$(id)"], stdin=b"\0\xff")
    assert (result.status, result.stdout) == (9, b"it's \xff$(id)\0\xff")


def test_a_container_that_does_not_exist(name: str):
    assert isinstance(failure_of("docker:nobody-home"), ContainerMissing)


def test_a_container_that_does_not_run(name: str):
    docker("create", "--name", "dflash-lab-stopped", "dflash-lab:bookworm", "true")
    try:
        assert isinstance(failure_of("docker:dflash-lab-stopped"), ContainerStopped)
    finally:
        docker("rm", "dflash-lab-stopped")


def test_an_engine_that_does_not_answer(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert isinstance(failure_of(f"docker:{name}"), Unreachable)


def test_what_runs_inside_ends_with_the_connection(name: str):
    connection = connect(f"docker:{name}")
    started = connection.run(["sh", "-c", "setsid sleep 983.731 >/dev/null 2>&1 & echo up"])
    assert started.stdout == b"up\n"
    connection.close()
    with connect(f"docker:{name}") as again:
        shown = again.run(["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"]).stdout
    assert b"983.731" not in shown


# --- depth four: sshd, sudo, LXC, and Docker's client in the container


@pytest.fixture(scope="module")
def with_docker(name: str) -> Iterator[str]:
    """An LXC container that has Docker's client and the engine's socket, where the client looks without being told."""
    socket = Path(os.environ["DOCKER_HOST"].removeprefix("unix://"))
    files = {Path("/run/docker.sock"): socket, Path("/usr/bin/docker"): Path(need_program("docker"))}
    with container(WITH_DOCKER, files) as number:
        yield number


@pytest.fixture(scope="module")
def deep(name: str, with_docker: str, lab_sshd: Sshd) -> Iterator[dict[str, Connection]]:
    """An open connection of depth four for each login shell."""
    opened: dict[str, Connection] = {}
    try:
        for login in LOGINS:
            opened[login] = connect(f"ssh:{login}/sudo/lxc:{with_docker}/docker:{name}")
        yield opened
    finally:
        for connection in opened.values():
            connection.close()


def test_depth_four_ends_in_the_docker_container(name: str, deep: dict[str, Connection]):
    short = docker("inspect", "-f", "{{.Config.Hostname}}", name).stdout.decode().strip()
    assert {connection.hello.host for connection in deep.values()} == {short}


@settings(max_examples=60, **quiet)
@given(login=st.sampled_from(LOGINS), argv=st.lists(hostile, max_size=6), value=hostile, stdin=st.binary(max_size=200))
def test_hostile_words_bytes_and_values_arrive_unchanged_at_depth_four(deep, login, argv, value, stdin):
    echoes(deep[login], argv, value, stdin)


def test_a_container_that_does_not_exist_is_blamed_at_depth_four(with_docker: str, lab_sshd: Sshd):
    failure = failure_of(f"ssh:lab/sudo/lxc:{with_docker}/docker:nobody-home")
    assert isinstance(failure, ContainerMissing)
    assert failure.layer == f"ssh:lab/sudo/lxc:{with_docker}/docker:nobody-home"


def test_a_layer_on_the_way_is_blamed_rather_than_those_below_it(with_docker: str, lab_sshd: Sshd):
    failure = failure_of("ssh:lab/sudo/lxc:nobody-home/docker:dflash-lab")
    assert isinstance(failure, ContainerMissing)
    assert failure.layer == "ssh:lab/sudo/lxc:nobody-home"


def test_what_runs_inside_ends_with_the_connection_at_depth_four(name: str, with_docker: str, lab_sshd: Sshd):
    with connect(f"ssh:lab/sudo/lxc:{with_docker}/docker:{name}") as connection:
        started = connection.run(["sh", "-c", "setsid sleep 985.731 >/dev/null 2>&1 & sleep 0.2; echo up"])
        assert started.stdout == b"up\n"
        assert len(running("985.731")) == 1
    wait_until(lambda: not running("985.731"), "the end of what ran inside", 5)
