"""What `./inv exec` and `./inv ping` do: one command on one host as if it ran here, or on many at once."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dflash.errors import DFlashError, UsageError, storage_error
from dflash.hosts.chain import Chain, Local
from dflash.hosts.connection import Result
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach

INTERPRETERS = {".py": ["python3"], ".sh": ["sh"], ".bash": ["bash"], ".pl": ["perl"]}
"""By a script's ending, where it has no `#!` line."""


@dataclass(frozen=True)
class Command:
    """What to run: argv, or a script whose text goes along and whose arguments argv are."""

    argv: tuple[str, ...]
    script: Path | None = None
    env: Mapping[str, str] | None = None
    cwd: str | None = None

    def words(self) -> list[str | bytes]:
        """The argv for the far end. A script is an argument of its interpreter's loader, so it needs no file there.

        Raises:
            UsageError: there is nothing to run, or no interpreter is known for the script.
            StorageError: the script can not be read.
        """
        if self.script is None:
            if not self.argv:
                raise UsageError("there is no command", cure="write it after --, as in ./inv exec --host H -- uname -a")
            return list(self.argv)
        try:
            text = self.script.read_bytes()
        except OSError as failure:
            raise storage_error(failure, self.script) from failure
        return [*_loader(self.script, text), *self.argv]


def _loader(path: Path, text: bytes) -> list[str | bytes]:
    """An interpreter and the words that make it run `text`: python -c, sh -c and perl -e all take a program so."""
    first = text.partition(b"\n")[0].decode(errors="replace")
    interpreter = first[2:].split() if first.startswith("#!") else INTERPRETERS.get(path.suffix, [])
    if interpreter[:1] == ["/usr/bin/env"]:
        interpreter = interpreter[1:]
    name = Path(interpreter[0]).name if interpreter else ""
    if b"\0" in text:
        raise UsageError("a script can not hold a NUL byte", where=str(path))
    if name.startswith("python"):
        return [*interpreter, "-c", text]
    if name in ("sh", "bash", "dash", "zsh", "ksh"):
        return [*interpreter, "-c", text, path.name]
    if name == "perl":
        return [*interpreter, "-e", text, "--"]
    known = ", ".join(INTERPRETERS)
    raise UsageError("no interpreter is known for it", where=str(path), cure=f"give it a #! line, or one of {known}")


def execute(host: Host, command: Command) -> int:
    """Run `command` on `host` with this process's streams, byte for byte; its exit code."""
    with reach(host.chain) as connection:
        result = connection.run(
            command.words(),
            env=command.env,
            cwd=command.cwd,
            stdin=_own_input(),
            stdout=writer(sys.stdout.buffer),
            stderr=writer(sys.stderr.buffer),
        )
    return result.code


def execute_on_all(hosts: Sequence[Host], command: Command) -> list[tuple[Host, Result | DFlashError]]:
    """Run `command` on all hosts at once, each with no input; results in the order given."""

    def one(host: Host) -> Result | DFlashError:
        try:
            with reach(host.chain) as connection:
                return connection.run(command.words(), env=command.env, cwd=command.cwd)
        except DFlashError as failure:
            return failure

    with ThreadPoolExecutor(max_workers=min(32, len(hosts))) as pool:
        return list(zip(hosts, pool.map(one, hosts), strict=True))


@dataclass(frozen=True)
class Layer:
    """One layer of a chain, as ping found it: seconds to open it, seconds of a round trip, and its agent."""

    layer: str
    open_s: float
    round_trip_s: float
    python: str
    host: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**self.__dict__, "open_s": round(self.open_s, 4), "round_trip_s": round(self.round_trip_s, 6)}


def ping(host: Host, rounds: int = 5) -> Iterator[Layer]:
    """Each layer of the host's chain in turn, outermost first; raises the first that fails, by its class."""
    hops = [hop for hop in host.chain.hops if not isinstance(hop, Local)]
    for depth in range(1, len(hops) + 1) if hops else [0]:
        chain = Chain(tuple(hops[:depth]) or (Local(),))
        begun = time.monotonic()
        with reach(chain) as connection:
            opened = time.monotonic() - begun
            best = min(connection.round_trip() for _ in range(rounds))
            yield Layer(str(chain), opened, best, connection.hello.python, connection.hello.host)


def _own_input() -> IO[bytes] | None:
    """This process's standard input, unbuffered, so that a byte that has come is a byte that goes on."""
    with contextlib.suppress(OSError, ValueError):
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    return None


def writer(stream: IO[bytes]) -> Callable[[bytes], None]:
    """A sink that writes to `stream` and flushes, so that a byte that has come is a byte that is seen."""

    def write(data: bytes) -> None:
        stream.write(data)
        stream.flush()

    return write
