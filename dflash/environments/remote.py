"""Environments of a host, seen from here: make generations, switch, remove, and compare them with their lock."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.markers import default_environment

from dflash.environments.cuda import driver
from dflash.environments.generations import NOTE
from dflash.environments.lock import Lock, lock_id, parse_lock, read_lock
from dflash.environments.locking import torch_as_declared
from dflash.environments.problems import problem
from dflash.environments.shadows import judge_surroundings
from dflash.environments.snapshot import Mode, Snapshot
from dflash.environments.spec import EnvironmentSpec, read_spec
from dflash.environments.surroundings import Surroundings
from dflash.environments.verify import REMAKE, judge
from dflash.errors import DFlashError, EnvironmentMismatch, StorageError, UsageError, storage_error
from dflash.finding import Finding
from dflash.hosts import files
from dflash.hosts.connection import Connection
from dflash.hosts.inventory import DEFAULT_ROOT, Host
from dflash.hosts.program import archive, program
from dflash.hosts.reach import reach

ID_LENGTH = 16
_MODULES = [
    f"dflash.environments.{name}"
    for name in ("bootstrap", "far", "generations", "installed", "making", "snapshot", "surroundings")
]
_ERRORS: dict[int, type[DFlashError]] = {2: UsageError, 3: EnvironmentMismatch, 5: StorageError}
Tell = Callable[[str], object]


@dataclass(frozen=True)
class Made:
    """What `create` came to: a generation's id, whether it was made now, and seconds of making it there."""

    id: str
    made: bool
    seconds: float


@dataclass(frozen=True)
class Reading:
    """An environment as it is on a host, and how long reading it took there, in seconds."""

    snapshot: Snapshot
    surroundings: Surroundings
    seconds: float


class HostEnvironments:
    """The environments below the root of one host, over an open connection."""

    def __init__(self, connection: Connection, host: Host, tell: Tell = lambda line: None) -> None:
        """`tell` gets what the far end says meanwhile, line by line."""
        self._connection, self._host, self._tell = connection, host, tell
        self._root = host.root or DEFAULT_ROOT
        self.remake = (
            f"make a clean one and switch to it: ./inv env.create NAME --again --host {host.name}, then env.use"
        )

    def create(self, folder: Path, *, wheels: Path | None = None, again: bool = False) -> Made:
        """Make the generation of `folder`'s lock, unless it is there; `again` makes one more. `wheels` is a folder of
        wheels here, which then are the only source.

        Raises:
            ConfigError, EnvironmentMismatch: the declaration, or no Python or no file that fits it.
            StorageError, HostError: the host.
        """
        spec, lock = read_spec(folder / "env.yaml"), read_lock(folder / "requirements.lock")
        torch_as_declared(lock, spec, folder / "requirements.lock")
        tool = Path(sys.prefix) / "bin" / "uv"
        place = f"tools/uv-{version('uv')}/uv"
        found = self._call("look", place)
        root = found["root"]
        if self._host.chain.is_local:
            uv, source = str(tool), str(wheels.resolve()) if wheels else ""
        else:
            if place not in found["there"]:
                self._send_uv(tool, f"{root}/{place}", found["machine"])
            uv, source = f"{root}/{place}", f"{root}/wheels/{spec.name}" if wheels else ""
            if wheels:
                self._tell(f"sending the wheels of {wheels}")
                files.put(self._connection, wheels, source)
        declared = {name: _bytes(folder / name) for name in ("requirements.lock", "env.yaml")}
        words = (spec.name, lock.id[:ID_LENGTH], spec.python, uv, source, spec.torch_backend, "again" if again else "")
        try:
            return Made(**self._call("create", *words, declared=declared))
        except EnvironmentMismatch as failure:
            if spec.indexes and not wheels:
                failure.cure = f"some files are on {', '.join(spec.indexes)}, which uv must know there (UV_INDEX)"
            raise

    def _send_uv(self, tool: Path, place: str, machine: str) -> None:
        if machine != os.uname().machine:
            what = f"the host is {machine}, this machine {os.uname().machine}: its uv would not run there"
            raise EnvironmentMismatch(
                what, where=self._connection.layer, cure=f"put uv {version('uv')} at {place} there"
            )
        self._tell(f"sending uv {version('uv')}")
        files.put(self._connection, tool, place)

    def listed(self, *names: str) -> list[dict[str, Any]]:
        """Every generation of the named environments, or of all."""
        found: list[dict[str, Any]] = self._call("list", *names)
        return found

    def python(self, name: str = "") -> str:
        """The interpreter of the generation of `name` that is in use there; with no name, of the only environment in
        use. On this machine it is the one that runs this. Never through `current`: a switch must not reach a run.

        Raises:
            UsageError: none is in use, or several are and none was named.
        """
        if self._host.chain.is_local:
            return sys.executable
        return f"{in_use(self.listed(), name, self._host.name)['path']}/bin/python"

    def use(self, name: str, wanted: str) -> dict[str, Any]:
        """Switch to the finished generation `wanted`, or to the newest whose id begins with that."""
        found: dict[str, Any] = self._call("use", name, wanted)
        return found

    def rollback(self, name: str) -> dict[str, Any]:
        """Switch to the generation that was used before."""
        found: dict[str, Any] = self._call("rollback", name)
        return found

    def pin(self, name: str, wanted: str, run: str) -> dict[str, Any]:
        """Keep a generation for a run; with no generation, let go of what the run had pinned."""
        found: dict[str, Any] = self._call("pin", name, wanted, run)
        return found

    def gc(self, name: str) -> list[dict[str, Any]]:
        """Remove the generations of an environment that nobody needs."""
        found: list[dict[str, Any]] = self._call("gc", name)
        return found

    def read(self, prefix: str, mode: Mode = "full") -> Reading:
        """Any environment of the host as it is."""
        plain = self._call("read", prefix, mode)
        around = Surroundings(**plain["surroundings"])
        return Reading(Snapshot.from_json(plain["snapshot"]), around, plain["seconds"])

    def verify(self, folder: Path, prefix: str, mode: Mode = "full") -> tuple[list[Finding], Reading | None]:
        """Compare the generation at `prefix` with the lock that it was made from, the declaration in `folder`, and
        what lies around it. A generation that is gone is a finding, and there is no reading of it."""
        remake = self.remake.replace("NAME", folder.name)
        try:
            reading = self.read(prefix, mode)
        except UsageError:
            return [problem("no-record", "environment", f"is gone from {prefix}", remake)], None
        if reading.snapshot.record is None and reading.snapshot.stamp is not None:
            remake = REMAKE  # a .venv, which ./inv makes
        spec, lock = read_spec(folder / "env.yaml"), read_lock(folder / "requirements.lock")
        own = self._own_lock(prefix, reading.snapshot) or lock
        return judged(spec, own, lock, reading, remake), reading

    def _own_lock(self, prefix: str, snapshot: Snapshot) -> Lock | None:
        """The lock that lies in a generation, when it is still the one that it was made from."""
        if snapshot.record is None:
            return None
        text = self._connection.run(["cat", f"{prefix}/requirements.lock"]).stdout
        return parse_lock(text, f"{prefix}/requirements.lock") if lock_id(text) == snapshot.record.lock else None

    def _call(self, role: str, *words: str, declared: Mapping[str, bytes] | None = None) -> Any:
        packed = archive("dflash.environments.far", _MODULES, declared)
        said = _Said(self._tell)
        command = program("python3", packed, role, self._root, *words)
        result = self._connection.execute(command, stderr=said)
        if result.code:
            last = said.last() or f"it ended with {result.code}"
            if "No module named" in last:
                last = f"python3 there is not whole ({last}); install python3, not python3-minimal"
            raise _ERRORS.get(result.code, EnvironmentMismatch)(last, where=self._connection.layer)
        return json.loads(result.stdout)


class _Said:
    """What the far end says on its error side: notes are passed on at once, and the rest is why it failed."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._rest, self._lines = tell, b"", [""]

    def __call__(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            if text.startswith(NOTE):
                self._tell(text.removeprefix(NOTE))
            elif text.strip():
                self._lines.append(text.strip())

    def last(self) -> str:
        """The last line that was no note."""
        return self._rest.decode(errors="replace").strip() or self._lines[-1]


def in_use(rows: Sequence[Mapping[str, Any]], name: str, host: str) -> Mapping[str, Any]:
    """Of the generations of `host`, as `listed` gives them, the one to run from: that of the environment `name`, or
    with no name of the only one that is in use. Raises UsageError."""
    used = [row for row in rows if row["current"] and row["finished"]]
    fitting = [row for row in used if name in ("", row["name"])]
    if not fitting:
        what = f"no generation of {name} is in use there" if name else "no environment is in use there"
        make = name or "NAME"
        cure = f"./inv env.create {make} --host {host}, then ./inv env.use {make} --host {host}"
        raise UsageError(what, where=host, cure=cure)
    if len(fitting) > 1:
        names = ", ".join(str(row["name"]) for row in fitting)
        cure = f"say which: --environment {fitting[0]['name']}"
        raise UsageError(f"{len(fitting)} environments are in use there ({names})", where=host, cure=cure)
    return fitting[0]


def judged(spec: EnvironmentSpec, own: Lock, declared: Lock, reading: Reading, remake: str) -> list[Finding]:
    """Everything there is to say of an environment of a host. An environment that is as its own lock says, while the
    declaration has gone on, is a warning: it is whole, and old."""
    record = reading.snapshot.record
    if record is None and reading.snapshot.stamp is None:
        text = "has no record of its files, or one that can not be read: it was not made to its end, or damaged since"
        return [problem("no-record", "environment", text, remake)]
    python = record.python if record else (reading.snapshot.settings or {}).get("version_info", "")
    found = judge(own, spec, reading.snapshot, marker_variables(python, reading.surroundings.machine), remake)
    if own.id != declared.id:
        text = f"made from lock {own.id[:ID_LENGTH]}; envs/{spec.name} has {declared.id[:ID_LENGTH]} now"
        found.append(Finding("warn", "lock", text, f"./inv env.create {spec.name}, then env.use", "other-lock"))
    return [
        *found,
        *judge_surroundings(spec, reading.snapshot, reading.surroundings),
        *driver(spec, reading.surroundings),
    ]


def marker_variables(python: str, machine: str) -> dict[str, str]:
    """PEP 508 variables of a host: Linux, CPython `python`, on `machine`."""
    here = {key: str(value) for key, value in default_environment().items()}
    if python:
        here |= {"python_full_version": python, "python_version": ".".join(python.split(".")[:2])}
    return {**here, "platform_machine": machine}


@contextlib.contextmanager
def on_host(host: Host, tell: Tell = lambda line: None) -> Iterator[HostEnvironments]:
    """The environments of a host, over a connection that ends with the block."""
    with reach(host.chain) as connection:
        yield HostEnvironments(connection, host, tell)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as failure:
        raise storage_error(failure, path) from failure
