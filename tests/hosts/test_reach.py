"""Through real chains: every byte arrives under every login shell, and a failure names the layer it happened on."""

from __future__ import annotations

import ast
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash.hosts.connection import Connection
from dflash.hosts.failures import (
    ProgramMissing,
)
from tests.hosts.conftest import NUMBER, connect
from tests.hosts.test_connection import running
from tests.lab.lxc import install_pct
from tests.lab.sshd import SHELLS, Sshd

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
quiet = {"suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}


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


def test_a_missing_program_names_the_whole_chain(connections):
    chain = f"ssh:lab/lxc:{NUMBER}"
    with pytest.raises(ProgramMissing, match=f"^{chain}: no-such-program: No such file"):
        connections[chain].run(["no-such-program"])
