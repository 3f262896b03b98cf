"""A user, with its groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.users import account_of, groups_of
from dflash.provision.operation import Action, Change, Kept


@dataclass(frozen=True)
class User:
    """The user `name` is there, and in `groups`; groups that it has besides are its own matter."""

    name: str
    groups: tuple[str, ...] = ()

    def facts(self) -> Sequence[Fact[Any]]:
        return [account_of(self.name), *([groups_of(self.groups)] if self.groups else [])]

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        account = known[account_of(self.name)]
        there = known[groups_of(self.groups)] if self.groups else frozenset()
        subject = f"user {self.name}"
        joined = [group for group in self.groups if account is None or group not in account.groups]
        if account is not None and not joined:
            groups = f", in {', '.join(self.groups)}" if self.groups else ""
            yield Kept(subject, f"it is there with number {account.uid}{groups}")
            return
        # A group without a member yet, such as render in a container, is made as the distribution would.
        actions = [Action(("groupadd", "--system", group)) for group in joined if group not in there]
        if account is None:
            actions.append(Action(("useradd", "--create-home", "--shell", "/bin/bash", self.name)))
        if joined:
            actions.append(Action(("usermod", "--append", "--groups", ",".join(joined), self.name)))
        before = "absent" if account is None else _line(account.groups)
        after = _line(dict.fromkeys((*(account.groups if account else (self.name,)), *self.groups)))
        yield Change(subject, before, after, tuple(actions))


def _line(groups: Sequence[str] | dict[str, None]) -> str:
    return f"groups {' '.join(groups)}"
