"""Detached jobs: they run on when the caller goes, and anyone who knows the id follows, stops or finds them again."""

from __future__ import annotations

import random
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tenacity import retry, retry_if_exception

from dflash.errors import UsageError
from dflash.hosts import keeper
from dflash.hosts.command import Command, Result, Variables
from dflash.hosts.connection import Connection
from dflash.hosts.failures import HostError, LostConnection, ProgramMissing, Unreachable
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach

GRACE_S = 10.0
PATIENCE_S = 300.0
"""How long a follower tries to reach a host again."""


class NoSuchJob(UsageError):
    """A host has no job of that id."""


@dataclass(frozen=True)
class Job:
    """A job as its host tells it. `state` is running, ended or lost; `status` or `signal` once it has ended."""

    id: str
    state: str
    status: int | None = None
    signal: int | None = None
    ended: float | None = None

    @property
    def code(self) -> int:
        """The exit code a shell would give; 1 for a job whose keeper was killed."""
        if self.state == "lost":
            return 1
        return self.status if self.status is not None else 128 + (self.signal or 0)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def folder_of(host: Host) -> str:
    """Where a host keeps its jobs."""
    return f"{host.root or '~/.dflash'}/jobs"


def new_id() -> str:
    """An id that sorts by time."""
    return f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(2)}"


def start(
    connection: Connection, host: Host, command: Command, identity: str = "", secrets: Variables | None = None
) -> str:
    """Start a job; its id, which a caller who must know it before may have made with `new_id`. `secrets` are variables
    that its processes are given and that are written nowhere: the keeper inherits them, and keeps the command alone.

    Raises:
        ProgramMissing: there is no such program or folder.
    """
    identity = identity or new_id()
    result = _keeper(connection, host, "start", identity, stdin=command.packed(), env=secrets)
    if result.status == 127:
        raise ProgramMissing(result.stderr.decode(errors="replace").strip(), layer=connection.layer)
    _require(result, connection, identity)
    return identity


def show(connection: Connection, host: Host, identity: str) -> Job:
    """The state of one job. Raises NoSuchJob."""
    result = _keeper(connection, host, "show", identity)
    _require(result, connection, identity)
    return _job(result.stdout.decode())


def list_jobs(connection: Connection, host: Host) -> list[Job]:
    """All jobs of a host, oldest first."""
    result = _keeper(connection, host, "list", "")
    return [_job(line) for line in result.stdout.decode().splitlines()]


def stop(
    connection: Connection, host: Host, identity: str, grace: float = GRACE_S, alone: float = 0.0, caller: str = ""
) -> Job:
    """End every process of a job, first kindly, after `grace` seconds not; the job as it ended. For `alone` seconds
    before that only its first process is told, which may know how to end the others: once by each `caller`, a word
    without spaces, and a second one means that it is to end now."""
    words = (str(grace), str(alone), caller)
    _require(_keeper(connection, host, "stop", identity, *words), connection, identity)
    return show(connection, host, identity)


def follow(host: Host, identity: str, sink: Callable[[bytes], object], offset: int = 0) -> Job:
    """Give a job's log to `sink` from `offset` on until the job ends; the job as it ended.

    A connection that breaks is opened again, and the log goes on at the byte it had come to: none is lost, none
    comes twice.

    Raises:
        NoSuchJob.
        HostError: the host can not be reached, or could not be again for PATIENCE_S.
    """
    place, heard = offset, 0.0  # a host that was never reached is an error at once; one that was is waited for

    def count(data: bytes) -> None:
        nonlocal place, heard
        sink(data)
        place += len(data)
        heard = time.monotonic()

    @retry(
        retry=retry_if_exception(lambda failure: heard > 0 and isinstance(failure, LostConnection | Unreachable)),
        wait=lambda state: random.uniform(0.5, 1) * min(10.0, 0.2 + (time.monotonic() - heard) / 4),
        # From the last that was heard of the host, not from the first attempt: a log is followed for days.
        stop=lambda state: time.monotonic() - heard > PATIENCE_S,
        reraise=True,
    )
    def attempt() -> Job:
        nonlocal heard
        with reach(host.chain) as connection:
            heard = time.monotonic()
            result = _keeper(connection, host, "follow", identity, str(place), sink=count)
            _require(result, connection, identity)
            return show(connection, host, identity)

    return attempt()


def _keeper(
    connection: Connection,
    host: Host,
    role: str,
    identity: str,
    *more: str,
    stdin: bytes | None = None,
    sink: Callable[[bytes], object] | None = None,
    env: Variables | None = None,
) -> Result:
    if not re.fullmatch(r"[A-Za-z0-9-]*", identity):
        raise UsageError(f"{identity!r} is not the id of a job", cure="./inv jobs --host H lists them")
    code = Path(keeper.__file__).read_text(encoding="utf-8")
    place = f"{folder_of(host)}/{identity}".rstrip("/")
    argv = ["python3", "-IS", "-c", code, keeper.MARK, role, place, *more]
    return connection.run(argv, stdin=stdin, stdout=sink, env=env)


def _require(result: Result, connection: Connection, identity: str) -> None:
    said = result.stderr.decode(errors="replace").strip()
    if result.status == 3:
        raise NoSuchJob(said, where=connection.layer, cure="./inv jobs --host H lists them")
    if result.code:
        last = said.splitlines()[-1] if said else f"status {result.code}"
        raise HostError(f"the keeper of job {identity} failed: {last}", layer=connection.layer)


def _job(line: str) -> Job:
    name, state, *rest = line.split()
    if not rest:
        return Job(name, state)
    kind, number, ended = rest
    return Job(name, state, **{kind: int(number)}, ended=float(ended))
