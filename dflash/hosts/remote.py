"""What `./inv exec` and `./inv ping` do: one command on one host as if it ran here, or on many at once."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from dflash.errors import DFlashError, UsageError, storage_error
from dflash.hosts.chain import Chain, Local
from dflash.hosts.command import Command, Script
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach

INTERPRETERS = {
    ".py": "python3",
    ".sh": "sh",
    ".bash": "bash",
    ".pl": "perl",
    ".rb": "ruby",
    ".js": "node",
    ".mjs": "node",
    ".lua": "lua",
    ".R": "Rscript",
}
"""By a script's ending, where it has no `#!` line."""


def command_of(argv: Sequence[str], script: Path | None, env: Mapping[str, str], cwd: str | None) -> Command:
    """The command that a person gave: a program and its arguments, or a script and its arguments.

    Raises:
        UsageError: there is nothing to run, or no interpreter is known for the script.
        StorageError: the script can not be read.
    """
    if script is None:
        if not argv:
            raise UsageError("there is no command", cure="write it after --, as in ./inv exec --host H -- uname -a")
        return Command(list(argv), env, cwd)
    try:
        text = script.read_bytes()
    except OSError as failure:
        raise storage_error(failure, script) from failure
    interpreter = _interpreter(script, text)
    return Command([*interpreter, *argv], env, cwd, Script(script.name, text, len(interpreter)))


def _interpreter(path: Path, text: bytes) -> list[str]:
    """The `#!` line as a kernel reads it, an interpreter and at most one argument; else by the script's ending."""
    first = text.partition(b"\n")[0].decode(errors="surrogateescape")
    words = first[2:].split(maxsplit=1) if first.startswith("#!") else [INTERPRETERS.get(path.suffix, "")]
    if not words or not words[0]:
        known = ", ".join(INTERPRETERS)
        raise UsageError(
            "no interpreter is known for it", where=str(path), cure=f"give it a #! line, or one of {known}"
        )
    return [word.rstrip() for word in words]


def execute(host: Host, command: Command) -> int:
    """Run `command` on `host` with this process's streams, byte for byte; its exit code."""
    with reach(host.chain) as connection:
        result = connection.execute(
            command,
            stdin=_own_input(),
            stdout=writer(sys.stdout.buffer),
            stderr=writer(sys.stderr.buffer),
        )
    return result.code


T = TypeVar("T")
AT_ONCE = 32


def on_all(hosts: Sequence[Host], body: Callable[[Host], T]) -> list[tuple[Host, T | DFlashError, float]]:
    """Call `body` for each host, all at once. In the order of `hosts`: what it gave or how it failed, and seconds."""

    def one(host: Host) -> tuple[Host, T | DFlashError, float]:
        begun = time.monotonic()
        outcome: T | DFlashError
        try:
            outcome = body(host)
        except DFlashError as failure:
            outcome = failure
        except Exception as failure:  # one host's bug must not hide what the others gave
            outcome = DFlashError(f"{type(failure).__name__}: {failure}", where=host.name)
        return host, outcome, time.monotonic() - begun

    # Daemons, not a pool, which waits for its threads: on Ctrl-C the process ends, its streams with it, and with those
    # what runs on the hosts.
    results: dict[int, tuple[Host, T | DFlashError, float]] = {}
    room = threading.Semaphore(AT_ONCE)

    def work(place: int) -> None:
        with room:
            results[place] = one(hosts[place])

    threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[place] for place in range(len(hosts))]


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
