"""The Docker hop, on a real engine, under the hops of a depth-four chain too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dflash.hosts.failures import ContainerMissing, ContainerStopped, HostError, Unreachable
from tests.hosts.conftest import connect
from tests.lab.docker import docker, docker_container

pytestmark = pytest.mark.nightly


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
