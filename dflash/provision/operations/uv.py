"""uv, which makes environments there: this project's own, put where `env.create` looks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from dflash.errors import DFlashError
from dflash.provision.fact import Fact, Facts, Output
from dflash.provision.facts.files import Status, ground_of
from dflash.provision.operation import Change, Kept
from dflash.provision.operations.writing import write_file

MACHINE = Fact("machine", ("uname", "-m"), lambda output: output.stdout.strip())


def version_of(place: str) -> Fact[str]:
    """The version of the uv at `place`; "" where there is none that runs."""
    return Fact(f"uv {place}", (place, "--version"), parse_version)


def parse_version(output: Output) -> str:
    """`uv 0.9.5 (abcdef 2026-01-01)`, or without the brackets."""
    words = output.stdout.split()
    return words[1] if output.ok and words[:1] == ["uv"] and len(words) > 1 else ""


@dataclass(frozen=True)
class Uv:
    """uv `version` is at `place` there. It comes from `source` here, a program of `size` bytes for `machine`. `login`,
    who logs in, puts it into its own directories without root."""

    place: str
    version: str
    source: Path
    size: int
    machine: str
    login: str = ""

    def facts(self) -> Sequence[Fact[Any]]:
        return [version_of(self.place), MACHINE, self._ground]

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        now = known[version_of(self.place)]
        subject = f"uv {self.version}"
        if now == self.version:
            yield Kept(subject, f"it is at {self.place}")
            return
        if known[MACHINE] != self.machine:
            what = f"the host is {known[MACHINE]}, this machine {self.machine}: its uv would not run there"
            raise DFlashError(what, cure=f"put uv {self.version} at {self.place} there")
        after = f"uv {self.version} at {self.place}"
        root = not known[self._ground].is_ground_of(self.login)
        action = write_file(self.place, self.source, self.size, "0755", root=root)
        yield Change(subject, f"uv {now} at {self.place}" if now else "absent", after, (action,))

    @property
    def _ground(self) -> Fact[Status]:
        return ground_of(str(PurePosixPath(self.place).parent))
