"""Detached jobs outlive their caller; their log is followed without losing or repeating a byte; stopping finds all."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash.errors import UsageError
from dflash.hosts import jobs
from dflash.hosts.chain import parse_chain
from dflash.hosts.command import Command, Script
from dflash.hosts.failures import LostConnection, ProgramMissing, Unreachable
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from tests.hosts.conftest import NUMBER
from tests.hosts.test_connection import running
from tests.lab.service import wait_until
from tests.lab.sshd import Sshd

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(params=["local", f"ssh:lab/lxc:{NUMBER}"])
def host(request: pytest.FixtureRequest, lab_sshd: Sshd, lab_container: str) -> Iterator[Host]:
    host = Host("there", parse_chain(request.param), root=f"/tmp/dflab-jobs-{time.monotonic_ns()}")
    yield host
    with reach(host.chain) as connection:
        for job in jobs.list_jobs(connection, host):
            jobs.stop(connection, host, job.id, grace=0.0)
        connection.run(["rm", "-rf", str(host.root)])


def start(host: Host, *argv: str, **settings: object) -> str:
    """Start a job by a connection of its own, which is closed again."""
    with reach(host.chain) as connection:
        return jobs.start(connection, host, Command(argv, **settings))


def test_a_job_outlives_the_connection_and_ends_with_its_status(host: Host):
    begun = time.monotonic()
    job = start(host, "sh", "-c", "echo begun; sleep 2; echo done; exit 5")
    assert time.monotonic() - begun < 2
    log = bytearray()
    ended = jobs.follow(host, job, log.extend)
    assert bytes(log) == b"begun\ndone\n"
    assert (ended.state, ended.status, ended.code) == ("ended", 5, 5)


def test_words_environment_and_folder_arrive_unchanged(host: Host):
    script = 'printf "%s|" "$@"; pwd; printf %s "$NAME"; cat'
    job = start(host, "sh", "-c", script, "sh", "a b", "$(id)", "it's\n", env={"NAME": "x; y"}, cwd="/usr")
    log = bytearray()
    jobs.follow(host, job, log.extend)
    assert log.decode() == "a b|$(id)|it's\n|/usr\nx; y"


def test_a_script_is_kept_with_its_job(host: Host):
    text = b"import sys\nprint(sys.argv)\n" + b"#" * 500_000
    job = start(host, "python3", "x", script=Script("probe.py", text, 1))
    log = bytearray()
    assert jobs.follow(host, job, log.extend).status == 0
    assert log.decode() == f"['{host.root}/jobs/{job}/script/probe.py', 'x']\n"


def test_a_job_that_a_signal_ends_says_so(host: Host):
    ended = jobs.follow(host, start(host, "sh", "-c", "kill -9 $$"), lambda data: None)
    assert (ended.signal, ended.code) == (9, 137)


def test_a_program_that_is_missing_is_an_error_at_the_start(host: Host):
    with pytest.raises(ProgramMissing, match="no-such-program"):
        start(host, "no-such-program")


def test_jobs_are_listed_oldest_first(host: Host):
    first = start(host, "true")
    time.sleep(1.1)
    second = start(host, "sleep", "60")
    wait_until(lambda: listed(host)[0].state == "ended", "the first job's end")
    assert [(job.id, job.state) for job in listed(host)] == [(first, "ended"), (second, "running")]


def listed(host: Host) -> list[jobs.Job]:
    with reach(host.chain) as connection:
        return jobs.list_jobs(connection, host)


def test_stopping_reaches_processes_in_sessions_of_their_own(host: Host):
    marker = f"97{time.monotonic_ns() % 100000}.731"
    script = f"trap '' TERM; setsid sleep {marker} & setsid sh -c 'trap \"\" TERM; sleep {marker}' & sleep {marker}"
    job = start(host, "sh", "-c", script)
    wait_until(lambda: len(running(marker)) >= 3, "the sleeps")
    with reach(host.chain) as connection:
        ended = jobs.stop(connection, host, job, grace=0.3)
    assert ended.state == "ended"
    assert running(marker) == []


def test_a_log_that_was_followed_for_long_is_followed_through_a_break(host: Host, monkeypatch: pytest.MonkeyPatch):
    """A follower's patience begins when it loses the host, not when it began to follow."""
    monkeypatch.setattr(jobs, "PATIENCE_S", 2.0)
    job = start(host, "sh", "-c", "i=0; while [ $i -lt 35 ]; do echo line $i; i=$((i+1)); sleep 0.1; done")
    log, broken, begun = bytearray(), [False], time.monotonic()

    def sink(data: bytes) -> None:
        log.extend(data)
        if not broken[0] and time.monotonic() - begun > 2.2:
            broken[0] = True
            kill_agents_followed(job)

    assert jobs.follow(host, job, sink).status == 0
    assert broken[0]
    assert log.decode().splitlines() == [f"line {number}" for number in range(35)]


def test_stopping_reaches_what_nobody_adopted_and_what_a_killed_keeper_left(host: Host):
    marker = f"95{time.monotonic_ns() % 100000}.731"
    job = start(host, "sh", "-c", f"(setsid sleep {marker} &); exec sleep {marker}")
    wait_until(lambda: len(running(marker)) == 2, "the sleeps")
    with reach(host.chain) as connection:
        keeper = connection.run(["cat", f"{host.root}/jobs/{job}/keeper"]).stdout.split()[0].decode()
        connection.run(["sh", "-c", 'kill -9 "$1"', "sh", keeper])
        assert jobs.show(connection, host, job).state == "lost"
        jobs.stop(connection, host, job, grace=0.3)
    wait_until(lambda: running(marker) == [], "the end of the sleeps")


def test_a_log_is_followed_through_a_broken_connection_without_losing_or_repeating_a_byte(host: Host):
    count = 30000
    script = f"i=0; while [ $i -lt {count} ]; do echo line $i; i=$((i+1)); done; sleep 1"
    job = start(host, "sh", "-c", script)
    log, breaks = bytearray(), [0]

    def sink(data: bytes) -> None:
        log.extend(data)
        if len(log) > 100_000 * (breaks[0] + 1) and breaks[0] < 2:
            breaks[0] += 1
            kill_agents_followed(job)

    ended = jobs.follow(host, job, sink)
    assert ended.status == 0
    assert breaks[0] == 2, "the connection was never broken"
    assert log.decode().splitlines() == [f"line {number}" for number in range(count)]


def kill_agents_followed(job: str) -> None:
    """Kill the agent whose follower reads this job's log: to the caller, a connection that breaks."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            parent = int((place / "stat").read_bytes().rpartition(b")")[2].split()[1])
            above = Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        is_agent = any(word.startswith(b"dflash-") for word in above)  # an orphan's parent is the container's init
        if is_agent and b"follow" in words and any(word.endswith(job.encode()) for word in words):
            subprocess.run(["kill", "-9", str(parent)], check=False)


def agents() -> set[str]:
    """Process ids of the agents on this machine, those in containers too."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            found |= {place.name for word in words if re.fullmatch(b"dflash-[0-9a-f]{16}", word)}
    return found


def test_a_killed_caller_leaves_the_job_running(host: Host, lab_sshd: Sshd):
    before = agents()
    marker = f"96{time.monotonic_ns() % 100000}.731"
    program = (
        "import time\nfrom dflash.hosts import jobs\nfrom dflash.hosts.chain import parse_chain\n"
        "from dflash.hosts.command import Command\n"
        "from dflash.hosts.inventory import Host\nfrom dflash.hosts.reach import reach\n"
        f"host = Host('there', parse_chain({str(host.chain)!r}), root={host.root!r})\n"
        "connection = reach(host.chain)\n"
        f"print(jobs.start(connection, host, Command(['sleep', '{marker}'])), flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-B", "-c", program], cwd=REPOSITORY, stdout=subprocess.PIPE) as caller:
        try:
            assert caller.stdout
            job = caller.stdout.readline().decode().strip()
            assert agents() > before
        finally:
            caller.kill()
    wait_until(lambda: agents() <= before, "the end of the agent, which ends what belongs to its caller")
    assert len(running(marker)) == 1
    with reach(host.chain) as connection:
        assert jobs.show(connection, host, job).state == "running"
        assert jobs.stop(connection, host, job).signal == 15
    assert running(marker) == []


def test_what_a_job_was_given_is_its_owners_alone(host: Host):
    job = start(host, "true", env={"TOKEN": "secret"})
    with reach(host.chain) as connection:
        shown = connection.run(["stat", "-c", "%a", f"{host.root}/jobs/{job}"]).stdout
    assert shown == b"700\n"


def test_an_id_that_is_not_there_is_one_line(host: Host):
    with pytest.raises(UsageError, match="there is no job 20260101T000000-abcd"):
        jobs.follow(host, "20260101T000000-abcd", lambda data: None)
    with pytest.raises(UsageError, match="is not the id of a job"):
        jobs.follow(host, "../../etc", lambda data: None)


def test_a_host_that_was_never_reached_is_an_error_at_once(lab_sshd: Sshd):
    host = Host("nowhere", parse_chain("ssh:root@127.0.0.1:1"))
    begun = time.monotonic()
    with pytest.raises(Unreachable):
        jobs.follow(host, "20260101T000000-abcd", lambda data: None)
    assert time.monotonic() - begun < 10


def test_a_command_that_is_running_when_the_connection_breaks_says_what_became_of_it(lab_sshd: Sshd):
    with reach(parse_chain("local")) as connection:
        pid = connection.hello.pid
        killer = threading.Timer(0.3, lambda: subprocess.run(["kill", "-9", str(pid)], check=False))
        killer.start()
        with pytest.raises(LostConnection, match="attached commands there are killed"):
            connection.run(["sleep", "3"])
        killer.join()


KIND = """
import signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "60"])
def told(number, frame):
    time.sleep(0.5)
    print("alive" if child.poll() is None else "gone", flush=True)
    child.kill()
    sys.exit(7)
signal.signal(signal.SIGTERM, told)
print("ready", flush=True)
signal.pause()
"""
"""When it is told to end, says whether its child was told as well, and ends it."""


@pytest.mark.parametrize(("alone", "child"), [(5.0, b"alive"), (0.0, b"gone")])
def test_a_jobs_first_process_may_be_told_alone_and_end_the_others(host: Host, alone: float, child: bytes):
    identity, said = jobs.new_id(), []
    with reach(host.chain) as connection:
        command = Command(["python3", "-c", KIND])
        assert jobs.start(connection, host, command, identity) == identity
        log = f"{host.root}/jobs/{identity}/log"
        wait_until(lambda: connection.run(["cat", log]).stdout == b"ready\n", "the job")
        assert jobs.stop(connection, host, identity, alone=alone).status == 7
    jobs.follow(host, identity, said.append)
    assert b"".join(said) == b"ready\n" + child + b"\n"


SAVING = """
import signal, sys, time
told = 0
def hear(number, frame):
    global told
    told += 1
signal.signal(signal.SIGTERM, hear)
print("ready", flush=True)
while not told:
    time.sleep(0.02)
until = time.monotonic() + 1.5
while told < 2 and time.monotonic() < until:
    time.sleep(0.02)
print("saved" if told < 2 else "lost", flush=True)
"""
"""When it is told to end it saves for a while; told once more, it loses what it has."""


def test_a_job_that_two_stop_one_after_the_other_is_told_once(tmp_path: Path):
    host, identity = Host("there", parse_chain("local"), root=str(tmp_path)), jobs.new_id()
    log = tmp_path / "jobs" / identity / "log"
    program = (
        "import sys\nfrom dflash.hosts import jobs\nfrom dflash.hosts.chain import parse_chain\n"
        "from dflash.hosts.inventory import Host\nfrom dflash.hosts.reach import reach\n"
        "host = Host('there', parse_chain('local'), root=sys.argv[1])\n"
        "jobs.stop(reach(host.chain), host, sys.argv[2], alone=20.0)\n"
    )
    with reach(host.chain) as connection:
        jobs.start(connection, host, Command(["python3", "-c", SAVING]), identity)
        wait_until(lambda: log.read_text() == "ready\n", "the job")
        first = subprocess.Popen([sys.executable, "-B", "-c", program, tmp_path, identity], cwd=REPOSITORY)
        with first:
            wait_until((log.parent / "told").exists, "the first stop")
            time.sleep(0.2)
            first.kill()
        assert jobs.stop(connection, host, identity, alone=20.0).status == 0
    assert log.read_text() == "ready\nsaved\n"


@pytest.mark.parametrize(("second", "said"), [("one", "saved"), ("other", "lost")])
def test_a_job_that_another_stops_meanwhile_is_told_again(tmp_path: Path, second: str, said: str):
    host, identity = Host("there", parse_chain("local"), root=str(tmp_path)), jobs.new_id()
    log = tmp_path / "jobs" / identity / "log"

    def stop(caller: str) -> None:
        with reach(host.chain) as own:
            jobs.stop(own, host, identity, alone=20.0, caller=caller)

    with reach(host.chain) as connection:
        jobs.start(connection, host, Command(["python3", "-c", SAVING]), identity)
        wait_until(lambda: log.read_text() == "ready\n", "the job")
        first = threading.Thread(target=stop, args=("one",))
        first.start()
        wait_until((log.parent / "told").exists, "the first stop")
        time.sleep(0.2)
        stop(second)
        first.join()
    assert log.read_text() == f"ready\n{said}\n"


def test_a_job_that_did_not_end_when_it_was_told_is_told_again(tmp_path: Path):
    host, identity = Host("there", parse_chain("local"), root=str(tmp_path)), jobs.new_id()
    log = tmp_path / "jobs" / identity / "log"
    with reach(host.chain) as connection:
        jobs.start(connection, host, Command(["python3", "-c", SAVING]), identity)
        wait_until(lambda: log.read_text() == "ready\n", "the job")
        (log.parent / "told").touch()
        os.utime(log.parent / "told", (0, time.time() - 30))
        assert jobs.stop(connection, host, identity, alone=20.0).status == 0
        assert time.time() - (log.parent / "told").stat().st_mtime < 10
