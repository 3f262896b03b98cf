"""A caller's end of a chain: many commands at once over one stream, each with its own bytes, status and layer."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from dflash.hosts import agent
from dflash.hosts.command import Command, Result, Variables, Words
from dflash.hosts.failures import HostError, LostConnection, ProgramMissing, TimedOut
from dflash.hosts.stream import ByteStream

BEAT_S = 1.0
Sink = Callable[[bytes], object]


@dataclass(frozen=True)
class Hello:
    """Who answers at the far end."""

    python: str
    pid: int
    user: int
    host: str


class Connection:
    """An open agent. Threads may share it; each command costs one round trip."""

    def __init__(self, stream: ByteStream, layer: str, rest: bytes = b"") -> None:
        """Take over a stream on which the agent has just started; `rest` was read from it already."""
        self._stream, self.layer = stream, layer
        self._frames = agent.Frames()
        self._numbers = itertools.count(1)
        self._writing = threading.Lock()
        self._commands: dict[int, _Running] = {}
        self._lost: str | None = None
        self._hello: queue.SimpleQueue[Hello | None] = queue.SimpleQueue()
        self._beats: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._heard = time.monotonic()
        self._reader = threading.Thread(target=self._read, args=(rest,), name=f"read {layer}", daemon=True)
        self._beaters = [
            threading.Thread(target=body, name=f"{body.__name__.strip('_')} {layer}", daemon=True)
            for body in (self._beat, self._listen)
        ]
        self._reader.start()
        hello = self._hello.get()
        if hello is None:
            said = stream.errors().strip().splitlines()
            self.close()
            raise LostConnection(f"the agent ended before it spoke{': ' + said[-1] if said else ''}", layer=layer)
        self.hello = hello
        for beater in self._beaters:
            beater.start()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def run(
        self,
        argv: Words,
        *,
        env: Variables | None = None,
        cwd: str | bytes | None = None,
        stdin: bytes | IO[bytes] | None = None,
        stdout: Sink | None = None,
        stderr: Sink | None = None,
    ) -> Result:
        """`execute` of a plain command."""
        return self.execute(Command(argv, env, cwd), stdin=stdin, stdout=stdout, stderr=stderr)

    def execute(
        self,
        command: Command,
        *,
        stdin: bytes | IO[bytes] | None = None,
        stdout: Sink | None = None,
        stderr: Sink | None = None,
    ) -> Result:
        """Run a command and wait for its end. Its bytes go to the sinks as they come; without a sink they are kept.

        Raises:
            ProgramMissing: there is no such program or directory, or it can not be executed.
            LostConnection: the stream broke; the command was killed there, as soon as the agent noticed.
        """
        running = self._begin()
        feeder = threading.Thread(target=self._feed, args=(running, stdin), name="stdin", daemon=True)
        try:
            self._send(running.number, agent.RUN, command.packed())
            if stdin is None or (isinstance(stdin, bytes) and len(stdin) <= agent.CHUNK):
                self._feed(running, stdin)
            else:
                feeder.start()
            return self._result(running, stdout, stderr)
        finally:
            self._over(running)
            if feeder.ident and isinstance(stdin, bytes):
                feeder.join()

    def gather(
        self, commands: Sequence[Command], patience: float | None = None
    ) -> list[Result | ProgramMissing | TimedOut]:
        """Run commands, none of which reads input, all at once and in one round trip; what became of each, in order.

        With `patience`, in seconds, one that takes longer is killed and no more waited for: not even for its death,
        which does not come while it sleeps in the kernel, as nvidia-smi does on a dead driver.

        Raises:
            LostConnection: as `run`.
        """
        started = [self._begin() for _ in commands]
        try:
            for running, command in zip(started, commands, strict=True):
                self._send(running.number, agent.RUN, command.packed())
                self._send(running.number, agent.INPUT)
            return [self._answer(running, patience) for running in started]
        finally:
            for running in started:
                self._over(running)

    def round_trip(self) -> float:
        """Seconds from a beat to its answer."""
        while not self._beats.empty():
            self._beats.get()
        begun = time.monotonic()
        self._send(0, agent.BEAT)
        try:
            return self._beats.get(timeout=agent.SILENCE) - begun
        except queue.Empty:
            raise self._lost_error() from None

    def close(self) -> None:
        """End the agent, and with it every command."""
        self._closing.set()
        self._stream.close()
        self._reader.join(10)
        for beater in self._beaters:
            if beater.ident:
                beater.join(10)

    # --- one command

    def _begin(self) -> _Running:
        running = _Running(next(self._numbers))
        self._commands[running.number] = running
        return running

    def _result(
        self, running: _Running, stdout: Sink | None, stderr: Sink | None, patience: float | None = None
    ) -> Result:
        kept: dict[int, list[bytes]] = {agent.OUTPUT: [], agent.ERRORS: []}
        sinks = {agent.OUTPUT: stdout or kept[agent.OUTPUT].append, agent.ERRORS: stderr or kept[agent.ERRORS].append}
        died, number = self._follow(running, sinks, patience)
        return Result(
            None if died else number,
            number if died else None,
            b"".join(kept[agent.OUTPUT]),
            b"".join(kept[agent.ERRORS]),
            time.monotonic() - running.begun,
        )

    def _answer(self, running: _Running, patience: float | None) -> Result | ProgramMissing | TimedOut:
        try:
            return self._result(running, None, None, patience)
        except (ProgramMissing, TimedOut) as failure:
            return failure

    def _over(self, running: _Running) -> None:
        """Forget a command; one that has not ended, since its caller was interrupted, is killed."""
        if not running.ended:
            with contextlib.suppress(HostError):
                self._send(running.number, agent.KILL, struct.pack(">I", 9))
        running.over()
        del self._commands[running.number]

    def _follow(self, running: _Running, sinks: Mapping[int, Sink], patience: float | None) -> tuple[int, int]:
        owed = 0
        while True:
            kind, payload = self._next(running, patience)
            if kind in sinks:
                sinks[kind](payload)
                owed += len(payload)
                if owed >= agent.WINDOW // 4:  # not each one: the rest of the window is open meanwhile
                    self._send(running.number, agent.ACK, struct.pack(">I", owed))
                    owed = 0
            elif kind == agent.EXIT:
                running.ended = True
                died, number = struct.unpack(">BI", payload)
                return died, number
            elif kind == agent.FAIL:
                running.ended = True
                raise self._program_missing(*agent.unpack_list(payload))
            elif kind == 0:
                raise self._lost_error()

    def _next(self, running: _Running, patience: float | None) -> tuple[int, bytes]:
        left = None if patience is None else max(0.0, running.begun + patience - time.monotonic())
        try:
            return running.frames.get(timeout=left)
        except queue.Empty:
            raise TimedOut(f"it did not end in {patience:g} s", layer=self.layer) from None

    def _program_missing(self, number: bytes, what: bytes) -> ProgramMissing:
        cure = "check its path" if int(number) in (errno.ENOENT, errno.EACCES) else None
        said = f"{os.fsdecode(what)}: {os.strerror(int(number))}"
        return ProgramMissing(said, layer=self.layer, cure=cure)

    def _feed(self, running: _Running, stdin: bytes | IO[bytes] | None) -> None:
        """Send a command's standard input, never more than the window ahead of what it took."""
        with contextlib.suppress(HostError, ValueError):  # ValueError: its owner closed it, the command being over
            for piece in _pieces(stdin):
                if not running.take_room(len(piece)):
                    return
                self._send(running.number, agent.INPUT, piece)
            self._send(running.number, agent.INPUT)

    # --- the stream

    def _send(self, number: int, kind: int, payload: bytes = b"") -> None:
        if self._lost is not None:
            raise self._lost_error()
        try:
            with self._writing:
                self._stream.write(agent.pack(number, kind, payload))
        except (OSError, ValueError) as failure:  # ValueError: the stream was closed meanwhile
            self._lose(str(failure) or type(failure).__name__)
            raise self._lost_error() from failure

    def _read(self, rest: bytes) -> None:
        reason = "the stream ended"
        try:
            data = rest or self._stream.read()
            while data:
                self._heard = time.monotonic()
                for frame in self._frames.feed(data):
                    self._dispatch(*frame)
                data = self._stream.read()
        except (OSError, ValueError) as failure:
            reason = str(failure)
        self._lose(reason)

    def _dispatch(self, number: int, kind: int, payload: bytes) -> None:
        if kind == agent.HELLO:
            python, pid, user, host = agent.unpack_list(payload)
            self._hello.put(Hello(python.decode(), int(pid), int(user), os.fsdecode(host)))
        elif kind == agent.BEAT:
            self._beats.put(time.monotonic())
        elif running := self._commands.get(number):
            if kind == agent.ACK:
                running.give_room(struct.unpack(">I", payload)[0])
            elif kind != agent.STARTED:
                running.frames.put((kind, payload))

    def _beat(self) -> None:
        while not self._closing.wait(BEAT_S) and self._lost is None:
            with contextlib.suppress(HostError):
                self._send(0, agent.BEAT)

    def _listen(self) -> None:
        """Give up a stream on which nothing comes any more. It never writes: what is written into a cut link waits."""
        while not self._closing.wait(BEAT_S) and self._lost is None:
            if time.monotonic() - self._heard > 2 * agent.SILENCE:
                self._lose("nothing came from there any more")
                self._stream.abort()

    def _lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._hello.put(None)
        for running in list(self._commands.values()):
            running.over()
            running.frames.put((0, b""))

    def _lost_error(self) -> LostConnection:
        return LostConnection(
            f"the connection was lost ({self._lost or 'no answer'}); attached commands there are killed"
            f" within {agent.SILENCE:.0f} s",
            layer=self.layer,
        )


class _Running:
    """A running command seen from here: what has come of it, and room for its input."""

    def __init__(self, number: int) -> None:
        self.number, self.begun, self.ended = number, time.monotonic(), False
        self.frames: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._room = agent.WINDOW
        self._over = False
        self._changed = threading.Condition()

    def take_room(self, size: int) -> bool:
        """Wait until `size` bytes of input may be sent; False when the command is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._room >= size)
            self._room -= size
            return not self._over

    def give_room(self, size: int) -> None:
        """The command took `size` bytes."""
        with self._changed:
            self._room += size
            self._changed.notify()

    def over(self) -> None:
        """No more input is wanted."""
        with self._changed:
            self._over = True
            self._changed.notify()


def _pieces(stdin: bytes | IO[bytes] | None) -> Iterable[bytes]:
    if stdin is None:
        return ()
    if isinstance(stdin, bytes):
        return (stdin[start : start + agent.CHUNK] for start in range(0, len(stdin), agent.CHUNK))
    return iter(lambda: stdin.read1(agent.CHUNK) if hasattr(stdin, "read1") else stdin.read(agent.CHUNK), b"")
