"""What the verbs that reach a host do: exec, ping, put, get, jobs, follow, stop and bench."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeVar

from dflash.cli import HOME, print_json
from dflash.errors import DFlashError, UsageError
from dflash.hosts.inventory import Host, find_host

if TYPE_CHECKING:
    from dflash.hosts.command import Command, Result
    from dflash.hosts.connection import Connection
    from dflash.hosts.files import Copied, Told
    from dflash.hosts.jobs import Job

T = TypeVar("T")


def hosts_of(text: str) -> list[Host]:
    """The hosts that `--host A,B` names, each a chain or a name of hosts.yaml."""
    return [find_host(name, HOME / "hosts.yaml") for name in text.split(",")]


def after_dashes(words: Sequence[str]) -> list[str]:
    """What follows the first `--` of a command line. Taken from the words: Invoke would join them into one string."""
    return list(words[words.index("--") + 1 :]) if "--" in words else []


def run(*, host: str, script: str, env: Sequence[str], cwd: str) -> None:
    """Run a command where `host` leads. Exits with its status; with several hosts, 1 if any failed."""
    from dflash.hosts.remote import execute

    command = _command(script, env, cwd)
    hosts = hosts_of(host)
    if len(hosts) == 1:
        sys.exit(execute(hosts[0], command))
    answers = everywhere(hosts, connected(lambda _, there: there.execute(command)), _ending)
    for each, result in answers:
        _copy(each.name, result.stdout, sys.stdout.buffer)
        _copy(each.name, result.stderr, sys.stderr.buffer)
    answers.leave()


def ping(*, host: str, as_json: bool) -> None:
    """Show each layer on the way to a host: how long it takes to open, a round trip, the agent's Python."""
    from dflash.hosts.remote import ping as layers_of

    found = []

    def one(host: Host) -> None:
        for layer in layers_of(host):  # said as they come: a layer that fails does not hide those before it
            found.append({"name": host.name, **layer.to_json()})
            if not as_json:
                times = f"opened in {layer.open_s * 1e3:.0f} ms, round trip {layer.round_trip_s * 1e3:.2f} ms"
                print(f"{layer.layer}: {times}, python {layer.python} on {layer.host}", flush=True)

    try:
        answers = everywhere(hosts_of(host), one)
    finally:
        if as_json:
            print_json({"layers": found})
    answers.leave()


def detach(*, host: str, script: str, env: Sequence[str], cwd: str) -> None:
    """Start a job on one host or several, and print its id."""
    from dflash.hosts import jobs

    command = _command(script, env, cwd)

    hosts = hosts_of(host)
    answers = everywhere(hosts, connected(lambda each, there: jobs.start(there, each, command)))
    for each, job in answers:
        print(job if len(hosts) == 1 else f"{each.name}  {job}")
    answers.leave()


def list_jobs(*, host: str, as_json: bool) -> None:
    """Show the jobs of one host or several."""
    from dflash.hosts import jobs

    answers = everywhere(hosts_of(host), connected(lambda each, there: jobs.list_jobs(there, each)))
    found: list[tuple[Host, Job]] = [(each, job) for each, its in answers for job in its]
    if as_json:
        print_json({"jobs": [{"host": each.name, **job.to_json()} for each, job in found]})
    else:
        for each, job in found:
            ended = "" if job.state == "running" else f" ({job.code})"
            print(f"{each.name}  {job.id}  {job.state}{ended}")
    answers.leave()


def follow(*, host: str, job: str, offset: int) -> None:
    """Copy a job's log to standard output until it ends; exits with the job's code. Ctrl-C leaves the job alone."""
    if offset < 0:
        raise UsageError("a log begins at byte 0", where=f"--offset {offset}", cure="give 0 or more")
    from dflash.hosts import jobs
    from dflash.hosts.remote import writer

    (each,) = _one(host)
    sys.exit(jobs.follow(each, job, writer(sys.stdout.buffer), offset).code)


def stop(*, host: str, job: str, grace: float) -> None:
    """End every process of a job."""
    from dflash.hosts import jobs
    from dflash.hosts.reach import reach

    (each,) = _one(host)
    with reach(each.chain) as connection:
        ended = jobs.stop(connection, each, job, grace)
    print(f"{ended.id}  {ended.state} ({ended.code})")


def put(*, host: str, source: str, place: str) -> None:
    """Copy a file or folder from here to one host or several."""
    from dflash.hosts import files

    hosts = hosts_of(host)
    with _bars() as bar:
        bars = {each.name: bar(each.name) for each in hosts}
        copy = connected(lambda each, there: files.put(there, Path(source), place, bars[each.name]))
        answers = everywhere(hosts, copy)
    for each, copied in answers:
        _say_copied(f"{source} -> {each.name}:{place}", copied)
    answers.leave()


def get(*, host: str, place: str, target: str) -> None:
    """Copy a file or folder from one host to here."""
    from dflash.hosts import files
    from dflash.hosts.reach import reach

    (each,) = _one(host)
    with _bars() as bar, reach(each.chain) as connection:
        copied = files.get(connection, place, Path(target), bar(each.name))
    _say_copied(f"{each.name}:{place} -> {target}", copied)


def bench(*, room: str, as_json: bool) -> None:
    """Measure a room with the lab's real peers, and print the figures."""
    rooms = sorted(path.stem for path in (HOME / "benchmarks").glob("*.py"))
    if room not in rooms:
        raise UsageError(f"there is no bench {room!r}", cure=f"there is {', '.join(rooms)}")
    figures: dict[str, float] = importlib.import_module(f"benchmarks.{room}").measure()
    if as_json:
        print_json(figures)
        return
    for name, value in figures.items():
        print(f"{name:24} {value:g}")


def connected(body: Callable[[Host, Connection], T]) -> Callable[[Host], T]:
    """`body` with an open connection to its host."""
    from dflash.hosts.reach import reach

    def opened(host: Host) -> T:
        with reach(host.chain) as connection:
            return body(host, connection)

    return opened


@dataclass(frozen=True)
class Answers(Generic[T]):
    """What a verb got from its hosts: (host, value) where it went well, the exit status that is true of all, and
    (host, failure) where there is a failure that was not raised."""

    values: list[tuple[Host, T]]
    status: int
    failed: tuple[tuple[Host, DFlashError], ...] = ()

    def failures(self) -> list[dict[str, str]]:
        """Those that failed, as plain values."""
        return [{"host": each.name, "error": str(failure)} for each, failure in self.failed]

    def __iter__(self) -> Iterator[tuple[Host, T]]:
        return iter(self.values)

    def leave(self) -> None:
        """Exit with the status, unless all went well: after whatever there was to print has been."""
        if self.status:
            sys.exit(self.status)


def everywhere(
    hosts: Sequence[Host], body: Callable[[Host], T], ending: Callable[[T], str] = lambda value: "ok"
) -> Answers[T]:
    """What `body` gave for each host. The failure of a single host is raised. Several are reached at once, and a table
    says how each ended; their status is 1 if any did not end with "ok"."""
    from dflash.hosts.remote import on_all

    if len(hosts) == 1:
        return Answers([(hosts[0], body(hosts[0]))], 0)
    rows, values, failed = [], [], []
    for each, outcome, seconds in on_all(hosts, body):
        if isinstance(outcome, DFlashError):
            failed.append((each, outcome))
            rows.append((each.name, "failed", f"{seconds:.2f} s", str(outcome)))
        else:
            values.append((each, outcome))
            rows.append((each.name, ending(outcome), f"{seconds:.2f} s", ""))
    _summary(rows)
    return Answers(values, 1 if any(row[1] != "ok" for row in rows) else 0, tuple(failed))


def _summary(rows: Sequence[tuple[str, str, str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("host", "result", "time", "why"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        style = "green" if row[1] == "ok" else "red"
        table.add_row(*(Text(word, style if place == 1 else "") for place, word in enumerate(row)))
    ok = sum(row[1] == "ok" for row in rows)
    console = Console(stderr=True)
    console.print(table)
    console.print(Text(f"{len(rows)} hosts: {ok} ok, {len(rows) - ok} failed"))


def _ending(result: Result) -> str:
    if result.code == 0:
        return "ok"
    return f"status {result.status}" if result.signal is None else f"signal {result.signal}"


@contextlib.contextmanager
def _bars() -> Iterator[Callable[[str], Told]]:
    """Gives a bar to whom it is asked for; they are seen on a terminal only."""
    from rich import progress as rich
    from rich.console import Console

    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn())
    rate = (rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
    console = Console(stderr=True)
    with rich.Progress(*columns, *rate, console=console, disable=not console.is_terminal, transient=True) as bars:

        def bar(name: str) -> Told:
            task = bars.add_task(name, total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield bar


def _say_copied(what: str, copied: Copied) -> None:
    kept = f", {copied.kept:,} of them there already" if copied.kept else ""
    print(f"{what}: {copied.total:,} bytes{kept}", file=sys.stderr)


def _one(host: str) -> list[Host]:
    hosts = hosts_of(host)
    if len(hosts) != 1:
        raise UsageError("this verb takes one host", where=f"--host {host}", cure="name one")
    return hosts


def _command(script: str, env: Sequence[str], cwd: str) -> Command:
    from dflash.hosts.remote import command_of

    variables = dict(_variable(text) for text in env)
    return command_of(after_dashes(sys.argv), Path(script) if script else None, variables, cwd or None)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"{text!r} sets nothing", where="--env", cure="write --env NAME=VALUE")
    return name, value


def _copy(name: str, data: bytes, stream: BinaryIO) -> None:
    for line in data.splitlines():
        stream.write(name.encode() + b": " + line + b"\n")
    stream.flush()
