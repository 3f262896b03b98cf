"""A chain that can not be reached: the failure names the layer, what happened there and what to do."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from dflash.hosts import handshake
from dflash.hosts.failures import (
    ContainerMissing,
    ContainerStopped,
    HostError,
    HostKeyChanged,
    LoginFailed,
    NoPython,
    Unreachable,
)
from tests.hosts.conftest import NUMBER, connect
from tests.hosts.test_connection import running
from tests.lab.sshd import Sshd, user_of


@pytest.fixture
def reached(lab_sshd: Sshd, lab_container: str) -> Sshd:
    return lab_sshd


def failure_of(chain: str) -> HostError:
    with pytest.raises(HostError) as raised:
        connect(chain).close()
    return raised.value


def test_a_name_that_does_not_resolve(reached: Sshd):
    failure = failure_of("ssh:no-such-host.invalid/lxc:box")
    assert isinstance(failure, Unreachable)
    assert str(failure).startswith("ssh:no-such-host.invalid: the name no-such-host.invalid can not be resolved")


def test_a_port_where_nobody_listens(reached: Sshd):
    failure = failure_of("ssh:root@127.0.0.1:1")
    assert isinstance(failure, Unreachable)
    assert "127.0.0.1:1 refused the connection" in str(failure)


def test_a_user_without_a_key(reached: Sshd):
    with (reached.home / ".ssh" / "config").open("a") as file:
        file.write(f"Host lab-stranger\n  HostName 127.0.0.1\n  Port {reached.port}\n  User stranger\n")
    failure = failure_of("ssh:lab-stranger/sudo")
    assert isinstance(failure, LoginFailed)
    assert failure.layer == "ssh:lab-stranger"


def test_a_host_key_that_has_changed_is_refused_with_file_and_line(reached: Sshd):
    connect("ssh:lab").close()
    before = reached.known_hosts.read_text()
    (other,) = [line for line in _other_key(reached.home).splitlines() if line]
    reached.known_hosts.write_text(f"# a comment\n[127.0.0.1]:{reached.port} {' '.join(other.split()[:2])}\n")
    try:
        failure = failure_of("ssh:lab/sudo")
        assert isinstance(failure, HostKeyChanged)
        assert f"{reached.known_hosts}:2" in str(failure)
        assert "# a comment" in reached.known_hosts.read_text(), "the file is only ever added to"
    finally:
        reached.known_hosts.write_text(before)


def _other_key(folder: Path) -> str:
    path = folder / "another"
    if not path.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text()


def test_a_new_host_key_is_written_down_once(reached: Sshd):
    reached.known_hosts.write_text("# mine\n")
    for _ in range(2):
        connect("ssh:lab").close()
    lines = reached.known_hosts.read_text().splitlines()
    assert lines[0] == "# mine"
    assert len(lines) == 2


def test_a_known_hosts_whose_last_line_has_no_end_keeps_its_entry(reached: Sshd):
    reached.known_hosts.write_text("other ssh-ed25519 AAAA")
    connect("ssh:lab").close()
    lines = reached.known_hosts.read_text().splitlines()
    assert lines[0] == "other ssh-ed25519 AAAA"
    assert len(lines) == 2


def test_a_new_host_key_is_refused_where_ssh_config_wants_it_so(reached: Sshd):
    config = reached.home / ".ssh" / "config"
    before, known = config.read_text(), reached.known_hosts.read_text()
    config.write_text(f"Host lab\n  StrictHostKeyChecking yes\n{before}")
    reached.known_hosts.write_text("")
    try:
        assert "not found in known_hosts" in str(failure_of("ssh:lab"))
        assert reached.known_hosts.read_text() == ""
    finally:
        config.write_text(before)
        reached.known_hosts.write_text(known)


def test_a_container_that_does_not_exist(reached: Sshd):
    failure = failure_of("ssh:lab/lxc:nobody-home")
    assert isinstance(failure, ContainerMissing)
    assert failure.layer == "ssh:lab/lxc:nobody-home"


def test_a_container_that_does_not_run(reached: Sshd):
    place = Path("/var/lib/lxc/dflab-stopped")
    place.mkdir()
    (place / "config").write_text("lxc.uts.name = dflab-stopped\n")
    try:
        assert isinstance(failure_of("ssh:lab/lxc:dflab-stopped"), ContainerStopped)
    finally:
        (place / "config").unlink()
        place.rmdir()


def test_a_layer_without_python(reached: Sshd):
    python = Path(f"/var/lib/lxc/{NUMBER}/rootfs/usr/bin/python3")
    hidden = python.with_name("python3.hidden")
    python.rename(hidden)
    try:
        failure = failure_of(f"ssh:lab/lxc:{NUMBER}")
        assert isinstance(failure, NoPython)
        assert failure.layer == f"ssh:lab/lxc:{NUMBER}"
    finally:
        hidden.rename(python)


def test_a_tool_that_the_layer_before_does_not_have(reached: Sshd):
    failure = failure_of("ssh:lab-bash/pct:200")
    assert isinstance(failure, Unreachable)
    assert failure.layer == "ssh:lab-bash/pct:200"
    assert "pct" in failure.what


def test_sudo_that_asks_for_a_password(reached: Sshd):
    failure = failure_of(f"ssh:lab-bash/sudo:nobody/sudo:{user_of('dash')}")
    assert isinstance(failure, LoginFailed)
    assert "sudo" in failure.what


# --- login shells that talk


@pytest.mark.parametrize(
    ("shell", "file", "text"),
    [
        ("bash", ".bashrc", "echo 'Welcome to $HOST'; printf 'no newline'\n"),
        ("tcsh", ".tcshrc", "echo 'Welcome!'\n"),
        ("fish", ".config/fish/config.fish", "echo Welcome\n"),
        ("bash", ".bashrc", "head -c 100000 /dev/zero | tr '\\0' x\n"),
    ],
)
def test_an_rc_file_that_prints_is_survived(reached: Sshd, shell: str, file: str, text: str):
    with _rc_file(shell, file, text), connect(f"ssh:lab-{shell}") as connection:
        assert connection.run(["echo", "exact"]).stdout == b"exact\n"


def test_an_rc_file_that_exits_is_named(reached: Sshd):
    with _rc_file("bash", ".bashrc", "echo 'This account is closed.'; exit 1\n"):
        failure = failure_of("ssh:lab-bash/sudo")
    assert isinstance(failure, Unreachable)
    assert failure.layer == "ssh:lab-bash"
    assert "ended with status 1" in str(failure)
    assert "This account is closed." in str(failure)
    assert "rc files" in str(failure)


def test_a_login_that_hangs_is_given_up_and_named(reached: Sshd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handshake, "PATIENCE_S", 2)
    with _rc_file("bash", ".bashrc", "sleep 600 < /dev/null\n"):
        failure = failure_of("ssh:lab-bash/sudo")
    assert isinstance(failure, Unreachable)
    assert str(failure).startswith("ssh:lab-bash: nothing answered in")
    for survivor in running("600"):  # sshd leaves it, as it does for any client that goes
        os.kill(survivor, signal.SIGKILL)


class _rc_file:
    def __init__(self, shell: str, name: str, text: str) -> None:
        self._path = Path(os.path.expanduser(f"~{user_of(shell)}")) / name
        self._text, self._before = text, None

    def __enter__(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._before = self._path.read_text() if self._path.exists() else None
        self._path.write_text(self._text)

    def __exit__(self, *failure: object) -> None:
        if self._before is None:
            self._path.unlink()
        else:
            self._path.write_text(self._before)
