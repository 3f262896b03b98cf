"""Through real chains: every byte arrives under every login shell, and a failure names the layer it happened on."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash.hosts import handshake
from dflash.hosts.connection import Connection
from dflash.hosts.failures import (
    ContainerMissing,
    ContainerStopped,
    HostError,
    HostKeyChanged,
    LoginFailed,
    NoPython,
    ProgramMissing,
    Unreachable,
)
from tests.hosts.conftest import NUMBER, connect
from tests.hosts.test_connection import running
from tests.lab.lxc import install_pct
from tests.lab.sshd import SHELLS, Sshd, user_of

CHAINS = [
    "local",
    "sudo",
    f"lxc:{NUMBER}",
    *(f"ssh:lab-{shell}" for shell in SHELLS),
    *(f"ssh:lab-{shell}/sudo" for shell in SHELLS),
    f"ssh:lab/lxc:{NUMBER}",
    f"ssh:lab-tcsh/sudo/lxc:{NUMBER}",
    f"ssh:lab-fish/sudo/lxc:{NUMBER}/sudo:nobody",
]


@pytest.fixture(scope="module")
def connections(lab_sshd: Sshd, lab_container: str) -> Iterator[dict[str, Connection]]:
    """An open connection to the end of each chain."""
    opened: dict[str, Connection] = {}
    try:
        for chain in CHAINS:
            opened[chain] = connect(chain)
        yield opened
    finally:
        for connection in opened.values():
            connection.close()


ECHO = r"""
import os, sys
data = sys.stdin.buffer.read()
got = [[os.fsencode(word) for word in sys.argv[1:]], os.environb.get(b"DFLASH_TEST", b""), os.getcwdb(), data]
sys.stderr.write(ascii(got))
sys.stdout.buffer.write(data[::-1])
"""

hostile = st.one_of(
    st.binary(max_size=60).map(lambda data: data.replace(b"\0", b"")),
    st.sampled_from(
        [b"$(id)", b"`id`", b"'", b'"', b"!!", b"*", b"~", b"\\", b"\n", b"-", b"--", b"#", b"%", b"^", b""]
    ),
    st.text("'\"$`\\!*?[]{}()<>|&;~# \n\t", max_size=30).map(str.encode),
)


def echoes(connection: Connection, argv: list[bytes], value: bytes, stdin: bytes) -> None:
    """Send, and compare what a program at the far end says it got."""
    result = connection.run(["python3", "-c", ECHO, *argv], env={"DFLASH_TEST": value}, cwd="/tmp", stdin=stdin)
    assert result.status == 0, result.stderr
    assert ast.literal_eval(result.stderr.decode()) == [argv, value, b"/tmp", stdin]
    assert result.stdout == stdin[::-1]


cases = given(
    chain=st.sampled_from(CHAINS),
    argv=st.lists(hostile, max_size=6),
    value=hostile,
    stdin=st.binary(max_size=200),
)
quiet = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}


@settings(max_examples=200, **quiet)
@cases
def test_hostile_words_bytes_and_values_arrive_unchanged(connections, chain, argv, value, stdin):
    echoes(connections[chain], argv, value, stdin)


@pytest.mark.nightly
@settings(max_examples=2000, **quiet)
@cases
def test_two_thousand_hostile_cases_arrive_unchanged(connections, chain, argv, value, stdin):
    echoes(connections[chain], argv, value, stdin)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_megabyte_of_arguments_arrives(connections, chain: str):
    argv = [b"x" * 100_000 + bytes([48 + number]) for number in range(10)]
    result = connections[chain].run(["sh", "-c", 'printf %s "$@" | wc -c', "sh", *argv])
    assert result.stdout.split() == [b"1000010"]


PROBE = """
import sys, json
print(json.dumps({"quote's": 'and "double"', "dollar": "$HOME `id` $(id)", "argv": sys.argv[1:]}))
"""


@pytest.mark.parametrize("shell", SHELLS)
def test_the_probe_that_four_layers_of_quoting_destroyed(connections, shell: str):
    """`ssh host 'pct exec 200 -- bash -c "… python3 -c \\"…\\""'`, as data."""
    chain = f"ssh:lab-{shell}/sudo"
    script = 'exec python3 -c "$1" "$2"'
    result = connections[chain].run(["bash", "-c", script, "probe", PROBE, 'an "argument" of it\'s own\n'])
    assert json.loads(result.stdout) == {
        "quote's": 'and "double"',
        "dollar": "$HOME `id` $(id)",
        "argv": ['an "argument" of it\'s own\n'],
    }


def test_pct_leads_into_the_container(lab_container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", install_pct(tmp_path))
    with connect(f"pct:{NUMBER}") as connection:
        assert connection.hello.host == NUMBER
        echoes(connection, [b"$(id)", b"it's", b"\xff"], b"a;b", b"\0\xff")


def test_thirty_two_commands_share_a_connection_that_sshd_gives_ten_sessions(connections):
    results: list[bytes] = []
    connection = connections["ssh:lab-bash"]
    threads = [
        threading.Thread(target=lambda: results.append(connection.run(["sh", "-c", "sleep 0.3; echo x"]).stdout))
        for _ in range(32)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [b"x\n"] * 32


def test_what_runs_inside_ends_with_the_connection_though_nobody_there_can_adopt_orphans(lab_container: str):
    """Debian's python3-minimal has no ctypes, so the agent in the container is no subreaper."""
    with connect(f"lxc:{NUMBER}") as connection:
        connection.run(["sh", "-c", "setsid sleep 982.731 >/dev/null 2>&1 & sleep 0.3"])
        assert len(running("982.731")) == 1
    assert running("982.731") == []


# --- failures, each by its layer


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


def test_a_missing_program_names_the_whole_chain(connections):
    chain = f"ssh:lab/lxc:{NUMBER}"
    with pytest.raises(ProgramMissing, match=f"^{chain}: no-such-program: No such file"):
        connections[chain].run(["no-such-program"])


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
