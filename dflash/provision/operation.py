"""An operation says what it must know of a machine and, from that, what is to be done. It runs nothing: a preview is
its plan, printed.

    class Directory:
        def facts(self): return [stat_of(self.path)]
        def plan(self, known):
            if known[stat_of(self.path)].is_directory:
                yield Kept(f"directory {self.path}", "it is there")
            else:
                yield Change(f"directory {self.path}", "absent", "there", (Action(("mkdir", "-p", self.path)),))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dflash.provision.fact import Fact, Facts


@dataclass(frozen=True)
class Action:
    """A command of a change: words as they arrive there, never a shell string, and what it reads: `stdin`, or a `file`
    of this machine.

    `secret` keeps `stdin` out of previews and logs. What needs no `root` is done by who logs in, root or not.
    """

    argv: tuple[str, ...]
    stdin: bytes = b""
    secret: bool = False
    file: Path | None = None
    root: bool = True


@dataclass(frozen=True)
class Change:
    """One thing that is not as it should be: what, how it is, how it will be (lines, which a preview compares), and
    the commands that make it so, in order. Once they have run, the same operation must find nothing to do."""

    subject: str
    before: str
    after: str
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class Kept:
    """One thing that is as it should be, and why nothing is done about it."""

    subject: str
    why: str


class Operation(Protocol):
    """What a machine is to have. Pure: the same facts give the same plan."""

    def facts(self) -> Sequence[Fact[Any]]:
        """What must be known of the machine."""
        ...

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        """What is to be done. Raises DFlashError for what can not be made so, with what a person can do."""
        ...
