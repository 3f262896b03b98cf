"""What the verbs that reach a host do: exec, ping, put, get, jobs, follow, stop and bench."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from dflash.cli import HOME, print_json
from dflash.errors import DFlashError, UsageError
from dflash.hosts.inventory import Host, find_host

if TYPE_CHECKING:
    from dflash.hosts.remote import Command


def hosts_of(text: str) -> list[Host]:
    """The hosts that `--host A,B` names, each a chain or a name of hosts.yaml."""
    return [find_host(name, HOME / "hosts.yaml") for name in text.split(",")]


def after_dashes(words: Sequence[str]) -> list[str]:
    """What follows the first `--` of a command line. Taken from the words: Invoke would join them into one string."""
    return list(words[words.index("--") + 1 :]) if "--" in words else []


def run(*, host: str, script: str, env: Sequence[str], cwd: str) -> None:
    """Run a command where `host` leads. Exits with its status; with several hosts, 1 if any failed."""
    from dflash.hosts.remote import execute, execute_on_all

    command = _command(script, env, cwd)
    hosts = hosts_of(host)
    if len(hosts) == 1:
        sys.exit(execute(hosts[0], command))
    failed = 0
    for each, outcome in execute_on_all(hosts, command):
        if isinstance(outcome, DFlashError):
            failed += 1
            print(f"{each.name}: error: {outcome}", file=sys.stderr)
            continue
        failed += outcome.code != 0
        _copy(each.name, outcome.stdout, sys.stdout.buffer)
        _copy(each.name, outcome.stderr, sys.stderr.buffer)
        print(f"{each.name}: ended with {outcome.code} after {outcome.seconds:.2f} s", file=sys.stderr)
    print(f"{len(hosts)} hosts: {len(hosts) - failed} ok, {failed} failed", file=sys.stderr)
    sys.exit(1 if failed else 0)


def ping(*, host: str, as_json: bool) -> None:
    """Show each layer on the way to a host: how long it takes to open, a round trip, the agent's Python."""
    from dflash.hosts.remote import ping as layers

    found = []
    for each in hosts_of(host):
        for layer in layers(each):
            found.append(layer.to_json())
            if not as_json:
                times = f"opened in {layer.open_s * 1e3:.0f} ms, round trip {layer.round_trip_s * 1e3:.2f} ms"
                print(f"{layer.layer}: {times}, python {layer.python} on {layer.host}")
    if as_json:
        print_json({"layers": found})


def detach(*, host: str, script: str, env: Sequence[str], cwd: str) -> None:
    """Start a job on one host or several, and print its id."""
    from dflash.hosts import jobs
    from dflash.hosts.reach import reach

    command = _command(script, env, cwd)
    for each in hosts_of(host):
        with reach(each.chain) as connection:
            print(jobs.start(connection, each, command.words(), env=command.env, cwd=command.cwd))


def list_jobs(*, host: str, as_json: bool) -> None:
    """Show the jobs of one host or several."""
    from dflash.hosts import jobs
    from dflash.hosts.reach import reach

    found = []
    for each in hosts_of(host):
        with reach(each.chain) as connection:
            found += [(each.name, job) for job in jobs.list_jobs(connection, each)]
    if as_json:
        print_json({"jobs": [{"host": name, **job.to_json()} for name, job in found]})
        return
    for name, job in found:
        ended = "" if job.state == "running" else f" ({job.code})"
        print(f"{name}  {job.id}  {job.state}{ended}")


def follow(*, host: str, job: str, offset: int) -> None:
    """Copy a job's log to standard output until it ends; exits with the job's code. Ctrl-C leaves the job alone."""
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


def _one(host: str) -> list[Host]:
    hosts = hosts_of(host)
    if len(hosts) != 1:
        raise UsageError("this verb takes one host", where=f"--host {host}", cure="name one")
    return hosts


def put(*, host: str, source: str, place: str) -> None:
    """Copy a file or folder from here to one host or several."""
    from dflash.hosts import files
    from dflash.hosts.reach import reach

    for each in hosts_of(host):
        with reach(each.chain) as connection:
            files.put(connection, Path(source), place)


def get(*, host: str, place: str, target: str) -> None:
    """Copy a file or folder from one host to here."""
    from dflash.hosts import files
    from dflash.hosts.reach import reach

    (each,) = _one(host)
    with reach(each.chain) as connection:
        files.get(connection, place, Path(target))


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


def _command(script: str, env: Sequence[str], cwd: str) -> Command:
    from dflash.hosts.remote import Command

    variables = dict(_variable(text) for text in env)
    return Command(tuple(after_dashes(sys.argv)), Path(script) if script else None, variables, cwd or None)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"{text!r} sets nothing", where="--env", cure="write --env NAME=VALUE")
    return name, value


def _copy(name: str, data: bytes, stream: BinaryIO) -> None:
    for line in data.splitlines(keepends=True):
        stream.write(name.encode() + b": " + line)
    stream.flush()
