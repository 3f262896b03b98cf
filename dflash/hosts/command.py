"""A command as data: what runs at the far end, how it is packed for the agent, and how it ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash.hosts import agent

Words = Sequence[str | bytes]
Variables = Mapping[str, str | bytes]


@dataclass(frozen=True)
class Script:
    """A file that goes along with a command: its path there becomes the word of argv at `place`. It is gone when the
    command has ended."""

    name: str
    text: bytes
    place: int


@dataclass(frozen=True)
class Command:
    """A program and its arguments; variables beside those that are set there; a folder; a script that goes along."""

    argv: Words
    env: Variables | None = None
    cwd: str | bytes | None = None
    script: Script | None = None

    def packed(self) -> bytes:
        """As the agent and the keeper of jobs take it (agent.py says in which order)."""
        entries = [word for entry in (self.env or {}).items() for word in entry]
        file = (str(self.script.place), self.script.name, self.script.text) if self.script else ("", "", "")
        words = [self.cwd or "", *file, str(len(entries) // 2), *entries, *self.argv]
        return agent.pack_list([os.fsencode(word) for word in words])


@dataclass(frozen=True)
class Result:
    """A finished command: `status` 0..255, or `signal`; what was captured of its streams; seconds it took."""

    status: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def code(self) -> int:
        """The status as a shell would give it: 128 + signal for a command that a signal ended."""
        return self.status if self.status is not None else 128 + (self.signal or 0)
