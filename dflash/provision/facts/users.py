"""Who we are there, and which users and groups there are."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.provision.fact import Fact, Output


@dataclass(frozen=True)
class Login:
    """Who commands run as, and their home."""

    uid: int
    name: str
    home: str


LOGIN = Fact(
    "login", ("sh", "-c", 'id -u; id -un 2>/dev/null || id -u; echo "${HOME:-/}"'), lambda output: parse_login(output)
)


def parse_login(output: Output) -> Login | None:
    """Three lines: number, name, home. None where they did not come: `id` may wait for a directory of users."""
    lines = output.stdout.splitlines()
    if not output.ok or len(lines) < 3 or not lines[0].isdecimal():
        return None
    return Login(int(lines[0]), lines[1], lines[2])


@dataclass(frozen=True)
class Account:
    """A user as getent knows it, with the names of all its groups."""

    name: str
    uid: int
    home: str
    groups: tuple[str, ...]


_ACCOUNT = 'getent passwd -- "$1" || exit; id -nG -- "$1"'


def account_of(name: str) -> Fact[Account | None]:
    """The user `name`; None where there is none."""
    return Fact(f"account {name}", ("sh", "-c", _ACCOUNT, "sh", name), parse_account)


def parse_account(output: Output) -> Account | None:
    """A line of passwd, then the groups."""
    if not output.ok:
        return None
    entry, groups = output.stdout.splitlines()[:2]
    name, _, uid, _, _, home, _ = entry.split(":")
    return Account(name, int(uid), home, tuple(groups.split()))


def groups_of(names: tuple[str, ...]) -> Fact[frozenset[str]]:
    """Which of `names` are groups there."""
    return Fact(f"groups {' '.join(names)}", ("getent", "group", "--", *names), parse_groups)


def parse_groups(output: Output) -> frozenset[str]:
    """getent prints those that it finds, and ends with 2 when one is missing."""
    return frozenset(line.partition(":")[0] for line in output.stdout.splitlines())
