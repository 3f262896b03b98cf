"""Whatever ends a caller, or the way to it: attached commands end with it, on the host and in the container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash.hosts.failures import LostConnection
from tests.hosts.conftest import NUMBER, connect
from tests.hosts.test_connection import running
from tests.lab.network import Link, link
from tests.lab.service import wait_until
from tests.lab.sshd import Sshd, sshd_behind

REPOSITORY = Path(__file__).parents[2]
WITHIN_S = 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("chain", ["local", f"ssh:lab-bash/sudo/lxc:{NUMBER}"])
def test_a_caller_that_a_signal_ends_leaves_nothing(
    lab_sshd: Sshd, lab_container: str, chain: str, number: signal.Signals
):
    """`./inv exec`, whose command has one child in its group and one in a session of its own."""
    marker = f"{98 + len(chain)}.{number}731"
    script = f"setsid sleep {marker} & sleep {marker} & echo up; sleep {marker}"
    words = [sys.executable, "-B", "-m", "dflash", "exec", "--host", chain, "--", "sh", "-c", script]
    with subprocess.Popen(words, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as caller:
        try:
            assert caller.stdout
            assert caller.stdout.readline() == b"up\n"
            wait_until(lambda: len(running(marker)) >= 3, "the sleeps")
        finally:
            caller.send_signal(number)
        wait_until(lambda: not running(marker), "the end of the sleeps", WITHIN_S)
        assert caller.wait(10) in (130, -number)


def test_ctrl_c_ends_a_command_on_several_hosts_at_once(lab_sshd: Sshd):
    marker = "979.731"
    words = [sys.executable, "-B", "-m", "dflash", "exec", "--host", "local,ssh:lab-bash", "--", "sleep", marker]
    with subprocess.Popen(words, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as caller:
        try:
            wait_until(lambda: len(running(marker)) == 3, "the two sleeps beside the caller")
        finally:
            caller.send_signal(signal.SIGINT)
        wait_until(lambda: not running(marker), "the end of the sleeps", WITHIN_S)
        _, said = caller.communicate(timeout=10)
    assert caller.returncode == 130
    assert b"Traceback" not in said


def test_a_caller_that_falls_silent_is_given_up_and_its_commands_are_killed():
    marker = "984.731"
    program = f"from tests.hosts.conftest import connect\nconnect('local').run(['sleep', '{marker}'])\n"
    with subprocess.Popen([sys.executable, "-B", "-c", program], cwd=REPOSITORY, start_new_session=True) as caller:
        try:
            wait_until(lambda: running(marker), "the sleep")
            os.kill(caller.pid, signal.SIGSTOP)  # no end of the stream, and no more bytes
            wait_until(lambda: not running(marker), "the end of the sleep", WITHIN_S)
        finally:
            caller.kill()


# --- a link that is cut, or that leads over another machine


@pytest.fixture(scope="module")
def way(lab_sshd: Sshd, lab_container: str) -> Iterator[Link]:
    """A caller's place, from which `lab-far` is this machine."""
    with link() as made, sshd_behind(made, lab_sshd):
        yield made


def inv_there(way: Link, *words: str) -> subprocess.Popen[bytes]:
    """`./inv` at the other end of the link."""
    command = way.inside(sys.executable, "-B", "-m", "dflash", *words)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, bufsize=0)


CONTAINER = f"ssh:lab-far/lxc:{NUMBER}"


@pytest.mark.nightly
def test_a_cut_link_ends_what_ran_there_and_then_tells_the_caller(way: Link):
    marker = "983.731"
    script = f"setsid sleep {marker} & sleep {marker} & echo up; sleep {marker}"
    with inv_there(way, "exec", "--host", CONTAINER, "--", "sh", "-c", script) as caller:
        assert caller.stdout
        assert caller.stdout.readline() == b"up\n"
        wait_until(lambda: len(running(marker)) == 3, "the sleeps")
        way.cut()
        try:
            wait_until(lambda: not running(marker), "the end of the sleeps", WITHIN_S)
            assert caller.poll() is None, "it was told before they had ended"
            _, said = caller.communicate(timeout=15)
        finally:
            way.mend()
        assert b"nothing came from there any more); attached commands there are killed" in said
        assert caller.returncode == LostConnection.exit_code


def test_a_job_goes_on_behind_a_cut_link_and_no_byte_of_its_log_is_lost_or_repeated(way: Link):
    count = 500
    script = f"i=0; while [ $i -lt {count} ]; do echo line $i; i=$((i+1)); sleep 0.02; done"
    with inv_there(way, "exec", "--detach", "--host", CONTAINER, "--", "sh", "-c", script) as caller:
        job = caller.communicate(timeout=30)[0].decode().strip()
    with inv_there(way, "follow", job, "--host", CONTAINER) as follower:
        assert follower.stdout
        first = follower.stdout.readline()
        way.cut()
        time.sleep(10)  # both ends have given up by now
        way.mend()
        rest, said = follower.communicate(timeout=60)
    assert follower.returncode == 0, said
    assert (first + rest).decode().splitlines() == [f"line {number}" for number in range(count)]
    with connect(f"lxc:{NUMBER}") as connection:
        connection.run(["rm", "-rf", f"/root/.dflash/jobs/{job}"])


def test_a_jump_host_of_ssh_config_leads_where_no_other_way_does(way: Link, lab_sshd: Sshd):
    show = ["--", "sh", "-c", 'echo "$SSH_CONNECTION"']
    with inv_there(way, "exec", "--host", "ssh:lab-inner", *show) as caller:
        seen, said = caller.communicate(timeout=30)
    assert seen.split()[2:] == [b"127.0.0.1", b"%d" % lab_sshd.port], said
    with inv_there(way, "exec", "--host", f"ssh:root@127.0.0.1:{lab_sshd.port}", *show) as caller:
        _, said = caller.communicate(timeout=30)
    assert b"refused the connection" in said
