"""A container behind a real sshd is checked, in the time that a person waits for an answer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.provision.checking import Checked, check_host
from tests.lab.lxc import container
from tests.lab.sshd import Sshd, sshd

pytestmark = pytest.mark.nightly
NUMBER = "735"


@pytest.fixture(scope="module")
def lab() -> Iterator[Sshd]:
    with sshd() as server:
        yield server


@pytest.fixture(scope="module")
def inside(lab: Sshd) -> Iterator[Host]:
    with container(NUMBER):
        yield Host("lab", parse_chain(f"ssh:lab/lxc:{NUMBER}"), root="/root/dflash")


def names(found: Checked) -> list[str]:
    return [each.name for each in found.findings if each.severity == "block"]


def test_a_bare_container_is_checked_in_less_than_three_seconds(inside: Host) -> None:
    check_host(inside)
    found = check_host(inside)
    print(f"check over ssh/lxc: {found.seconds:.2f} s")
    assert found.seconds < 3
    assert found.layer == "resources"
    assert names(found) == ["python-not-whole", "no-compiler"]
    (machine,) = [each for each in found.findings if each.subject == "system"]
    assert os.uname().release in machine.found


def test_a_container_that_is_stopped_is_found_so_and_its_host_is_judged(inside: Host) -> None:
    subprocess.run(["lxc-stop", "-n", NUMBER, "-k"], check=True)
    found = check_host(inside)
    assert found.layer == "container"
    assert names(found) == ["container-stopped"]
    assert {"ssh", "host"} <= {each.layer for each in found.findings}


def test_an_rc_file_that_prints_is_seen_from_outside(lab: Sshd) -> None:
    rc = lab.key.parent / "home-tcsh" / ".tcshrc"
    rc.write_text("echo hello from an rc file\n")
    rc.chmod(0o644)
    found = check_host(Host("lab", parse_chain("ssh:lab-tcsh")))
    (noise,) = [each for each in found.findings if each.name == "login-noise"]
    assert "'hello from an rc file'" in noise.found
    (user,) = [each for each in found.findings if each.subject == "user"]
    assert user.found.endswith("root by sudo")
