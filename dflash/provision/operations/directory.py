"""A directory and whose it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import DFlashError
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.files import Status, ground_of, stat_of
from dflash.provision.operation import Action, Change, Kept


@dataclass(frozen=True)
class Directory:
    """The directory `path` is there and belongs to `owner`, a user's name or number; with no owner, to anybody. What is
    in it is not touched. `login`, who logs in, makes its own directories without root."""

    path: str
    owner: str = ""
    login: str = ""

    def facts(self) -> Sequence[Fact[Any]]:
        return [stat_of(self.path), ground_of(self.path)]

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        now = known[stat_of(self.path)]
        subject = f"directory {self.path}"
        own = (Action(("chown", "--", self.owner, self.path)),) if self.owner else ()
        if now.error:
            raise DFlashError(now.error, where=self.path, cure="look at the folders above it")
        if not now.kind:
            after = f"a directory of {self.owner}" if self.owner else "a directory"
            alone = self.owner in ("", self.login) and known[ground_of(self.path)].is_ground_of(self.login)
            made = Action(("mkdir", "-p", "--", self.path), root=not alone)
            yield Change(subject, "absent", after, (made,) if alone else (made, *own))
        elif now.kind != "directory":
            raise DFlashError(
                f"there is a {now.kind}, not a directory", where=self.path, cure="move it away, or name another place"
            )
        elif self.owner not in ("", now.user, str(now.uid)):
            yield Change(subject, _of(now), f"a directory of {self.owner}", own)
        else:
            yield Kept(subject, f"it is there, {_of(now)}")


def _of(now: Status) -> str:
    return f"a directory of {now.user}"
