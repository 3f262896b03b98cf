"""Commands by the agent: exact bytes, exact ends, many at once, and nothing left when the caller goes."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash.hosts import agent, reach
from dflash.hosts.command import Command, Result, Script
from dflash.hosts.connection import Connection
from dflash.hosts.failures import LostConnection, ProgramMissing, TimedOut
from dflash.hosts.stream import ProgramStream
from tests.hosts.conftest import connect
from tests.lab.service import wait_until
from tests.mounts import frozen_file_system


@pytest.fixture(scope="module")
def here() -> Connection:
    with connect("local") as connection:
        yield connection


def test_streams_and_status_are_exact(here: Connection):
    every_byte = bytes(range(256)) * 40
    script = "cat; printf 'an error\\377' >&2; exit 7"
    result = here.run(["sh", "-c", script], stdin=every_byte)
    assert (result.status, result.signal) == (7, None)
    assert result.stdout == every_byte
    assert result.stderr == b"an error\xff"


def test_words_arrive_as_they_were_sent(here: Connection):
    words = [b"a b", b"", b"$(id)", b"`id`", b"!!", b"*", b"it's", b'"', b"\n", b"\xff\xfe", "é".encode(), b"~", b"\\"]
    result = here.run(["sh", "-c", 'printf "%s\\0" "$@"', "sh", *words])
    assert result.stdout.split(b"\0")[:-1] == words


def test_environment_and_directory_are_set(here: Connection, tmp_path: Path):
    place = tmp_path / "it's a \n place"
    place.mkdir()
    result = here.run(["sh", "-c", 'pwd; printf %s "$NAME"'], env={"NAME": "a; echo INJECTED"}, cwd=str(place))
    assert result.stdout.decode() == f"{place}\na; echo INJECTED"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, 137), (signal.SIGTERM, 143)])
def test_a_death_by_signal_is_not_an_exit_status(here: Connection, number: signal.Signals, code: int):
    result = here.run(["sh", "-c", f"kill -{number.value} $$"])
    assert (result.status, result.signal, result.code) == (None, number, code)


def test_a_missing_program_a_missing_directory_and_an_exit_of_127_are_three_things(here: Connection):
    with pytest.raises(ProgramMissing, match="local: no-such-program: No such file or directory"):
        here.run(["no-such-program"])
    with pytest.raises(ProgramMissing, match="local: /no/such/place: No such file or directory"):
        here.run(["true"], cwd="/no/such/place")
    assert here.run(["sh", "-c", "exit 127"]).status == 127


def test_a_file_that_may_not_be_executed_is_named(here: Connection, tmp_path: Path):
    file = tmp_path / "plain"
    file.write_text("text")
    with pytest.raises(ProgramMissing, match="Permission denied"):
        here.run([str(file)])


def test_standard_input_ends(here: Connection):
    assert here.run(["wc", "-c"]).stdout.split() == [b"0"]
    assert here.run(["wc", "-c"], stdin=io.BytesIO(b"x" * 3_000_000)).stdout.split() == [b"3000000"]


def test_a_command_that_does_not_read_its_input_still_ends(here: Connection):
    assert here.run(["true"], stdin=b"x" * 5_000_000).status == 0


def test_much_on_the_error_side_first_does_not_block(here: Connection):
    script = "head -c 5000000 /dev/zero >&2; head -c 5000000 /dev/zero"
    result = here.run(["sh", "-c", script])
    assert (len(result.stdout), len(result.stderr)) == (5_000_000, 5_000_000)


@pytest.mark.parametrize("pause", [0.0, 0.02])
def test_both_streams_at_once_arrive_whole_however_slowly_they_are_read(here: Connection, pause: float):
    """They share a window: one that has just filled it must not look like the other's end."""
    program = (
        "import sys, threading\n"
        "def fill(stream):\n    for _ in range(24): stream.write(bytes(1 << 18))\n    stream.flush()\n"
        "threads = [threading.Thread(target=fill, args=(s.buffer,)) for s in (sys.stdout, sys.stderr)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    got = {"out": 0, "err": 0}

    def sink(name: str) -> Callable[[bytes], None]:
        def take(data: bytes) -> None:
            got[name] += len(data)
            time.sleep(pause)

        return take

    done = here.run(["python3", "-c", program], stdout=sink("out"), stderr=sink("err"))
    assert (done.status, got) == (0, {"out": 24 << 18, "err": 24 << 18})


def test_commands_run_at_once_on_one_stream(here: Connection):
    results: dict[int, bytes] = {}

    def body(number: int) -> None:
        results[number] = here.run(["sh", "-c", f"sleep 0.5; echo {number}"]).stdout

    threads = [threading.Thread(target=body, args=(number,)) for number in range(32)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {number: f"{number}\n".encode() for number in range(32)}
    assert time.monotonic() - begun < 8, "they ran one after the other"


def test_a_slow_reader_holds_back_its_own_command_only(here: Connection):
    taken = threading.Event()

    def slowly(data: bytes) -> None:
        taken.wait(10)

    slow = threading.Thread(target=lambda: here.run(["head", "-c", "20000000", "/dev/zero"], stdout=slowly))
    slow.start()
    try:
        assert here.run(["echo", "quick"]).stdout == b"quick\n"
    finally:
        taken.set()
        slow.join(30)


def test_what_a_command_leaves_in_its_group_ends_with_it(here: Connection):
    result = here.run(["sh", "-c", "sleep 987 & echo $!"])
    time.sleep(0.1)
    assert not Path(f"/proc/{int(result.stdout)}").exists()


def test_everything_ends_with_the_connection_whatever_session_it_made():
    marker = "986.731"
    connection = connect("local")
    started = threading.Event()
    lost: list[BaseException] = []

    def body() -> None:
        script = f"setsid sleep {marker} & sleep {marker} & echo; sleep {marker}"
        try:
            connection.run(["sh", "-c", script], stdout=lambda data: started.set())
        except LostConnection as failure:
            lost.append(failure)

    thread = threading.Thread(target=body)
    thread.start()
    assert started.wait(10)
    connection.close()
    thread.join(10)
    assert len(lost) == 1
    assert running(marker) == []


@pytest.mark.nightly
def test_a_far_end_that_falls_silent_is_given_up_while_input_waits_to_be_written(monkeypatch: pytest.MonkeyPatch):
    class Stopping(io.BytesIO):
        """Input after whose first piece the agent reads no more: a pipe holds less of it than the window."""

        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                os.kill(connection.hello.pid, signal.SIGSTOP)
            return super().read(size)

        read1 = read

    monkeypatch.setattr(agent, "SILENCE", 1.5)  # of every connection of this process, the fixture's too
    with connect("local") as connection, pytest.raises(LostConnection, match="nothing came from there any more"):
        connection.run(["cat"], stdin=Stopping(bytes(agent.WINDOW)), stdout=lambda _: None)
    os.kill(connection.hello.pid, signal.SIGCONT)  # it finds its caller gone, and ends all


def test_many_commands_are_gathered_in_one_round_trip(monkeypatch: pytest.MonkeyPatch):
    """Over a way on which every answer takes 0.3 s."""

    class Slow(ProgramStream):
        def read(self) -> bytes:
            time.sleep(0.3)
            return super().read()

    monkeypatch.setattr(reach, "ProgramStream", Slow)
    commands = [Command(["sh", "-c", 'echo "$1"; exit "$2"', "sh", str(n), str(n)]) for n in range(20)]
    with connect("local") as connection:
        begun = time.monotonic()
        *found, missing = connection.gather([*commands, Command(["no-such-program"])])
        assert time.monotonic() - begun < 4 * 0.3 + 1
    assert [(each.stdout, each.status) for each in found] == [(b"%d\n" % n, n) for n in range(20)]
    assert isinstance(missing, ProgramMissing)


def test_a_command_that_even_sigkill_can_not_end_holds_up_neither_the_others_nor_the_end(tmp_path: Path):
    with frozen_file_system(tmp_path / "frozen") as folder:
        begun = time.monotonic()
        with connect("local") as connection:
            write = Command(["sh", "-c", 'echo x >"$1"', "sh", str(folder / "file")])
            stuck, fine = connection.gather([write, Command(["true"])], patience=0.5)
            assert time.monotonic() - begun < 3
            assert isinstance(stuck, TimedOut)
            assert isinstance(fine, Result)
            assert connection.run(["true"]).status == 0
        assert time.monotonic() - begun < 9


def test_a_command_that_takes_too_long_is_killed(here: Connection):
    (slow,) = here.gather([Command(["sleep", "31.4159"])], patience=0.2)
    assert isinstance(slow, TimedOut)
    wait_until(lambda: here.run(["pgrep", "-f", "^sleep 31.4159"]).status == 1, "the end of sleep", 3)


@pytest.mark.parametrize("size", [0, 3_000_000])
def test_a_script_of_any_size_is_a_file_under_its_own_name_there_while_it_runs(here: Connection, size: int):
    program = b"import os, sys\nprint(os.path.basename(sys.argv[0]), sys.argv[1:], os.path.getsize(sys.argv[0]))\n"
    text = program + b"#" * size
    done = here.execute(Command(["python3", "-B", "-u", "a b"], script=Script("pro be.py", text, 3)))
    assert done.stdout.decode() == f"pro be.py ['a b'] {len(text)}\n"
    path = here.execute(Command(["echo"], script=Script("x", b"", 1))).stdout.strip()
    assert not Path(os.fsdecode(path)).parent.exists()


def test_a_script_is_gone_too_when_its_interpreter_is_missing(here: Connection):
    with pytest.raises(ProgramMissing, match="no-such-interpreter"):
        here.execute(Command(["no-such-interpreter"], script=Script("x", b"text", 1)))


def running(marker: str) -> list[int]:
    """Processes with `marker` among their words."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if marker.encode() in words:
            found.append(int(place.name))
    return found
