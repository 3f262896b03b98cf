"""A fact is one command and one pure function of what it printed. `read` asks a machine for many in one round trip.

KERNEL = Fact("kernel", ("uname", "-r"), lambda output: output.stdout.strip())
known = read(connection, [KERNEL])
known[KERNEL]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from dflash.hosts.command import Command, Result
from dflash.hosts.connection import Connection
from dflash.hosts.failures import ProgramMissing, TimedOut

T = TypeVar("T")

MISSING = 127
"""The status of a command whose program is not there, as shells give it."""
HUNG = 124
"""The status of a command that did not end in PATIENCE_S, as `timeout` gives it."""
PATIENCE_S = 30.0
"""Without persistence, the driver wakes eight GPUs for each command that asks for them, for some seconds each."""


@dataclass(frozen=True)
class Output:
    """What a command came to: its exit status, as a shell would give it, and its two streams as text."""

    status: int
    stdout: str = ""
    stderr: str = ""

    @property
    def ok(self) -> bool:
        """It ended well."""
        return self.status == 0

    @property
    def hung(self) -> bool:
        """It was given up."""
        return self.status == HUNG


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A command, and how what it printed is read. Two with the same name and command are the same fact.

    `parse` is pure, and raises nothing: what was not there is part of the value.
    """

    name: str
    argv: tuple[str, ...]
    parse: Callable[[Output], T] = field(compare=False, repr=False)


class Facts:
    """What is known of one machine: outputs by fact, read when they are asked for."""

    def __init__(self, outputs: Mapping[Fact[Any], Output]) -> None:
        self.outputs = dict(outputs)

    def __getitem__(self, fact: Fact[T]) -> T:
        return fact.parse(self.outputs[fact])

    def __contains__(self, fact: Fact[Any]) -> bool:
        return fact in self.outputs


def read(connection: Connection, facts: Iterable[Fact[Any]], patience: float = PATIENCE_S) -> Facts:
    """Ask the machine at the end of `connection` for `facts`, each once, all at the same time. What does not answer in
    `patience` seconds has the status HUNG: a driver that died takes nvidia-smi along, and must not take us.

    Raises:
        LostConnection: the stream broke.
    """
    wanted = list(dict.fromkeys(facts))
    # Programs say what they have to say in English, with points in their numbers.
    commands = [Command(fact.argv, env={"LC_ALL": "C"}) for fact in wanted]
    answers = connection.gather(commands, patience)
    return Facts({fact: _output(answer) for fact, answer in zip(wanted, answers, strict=True)})


def _output(answer: Result | ProgramMissing | TimedOut) -> Output:
    if isinstance(answer, TimedOut):
        return Output(HUNG, "", answer.what)
    if isinstance(answer, ProgramMissing):
        return Output(MISSING, "", answer.what)
    return Output(answer.code, answer.stdout.decode(errors="replace"), answer.stderr.decode(errors="replace"))
