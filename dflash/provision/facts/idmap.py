"""Which ids of the host the users of unprivileged containers are given."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dflash.provision.fact import Fact, Output


@dataclass(frozen=True)
class Range:
    """`count` ids from `start` on, which `user` may give to the containers it makes."""

    user: str
    start: int
    count: int


def parse_ranges(output: Output) -> tuple[Range, ...]:
    """The lines `user:start:count` of /etc/subuid or /etc/subgid."""
    lines = re.findall(r"^([^:#\s]+):(\d+):(\d+)\s*$", output.stdout, re.MULTILINE)
    return tuple(Range(user, int(start), int(count)) for user, start, count in lines)


SUBUID = Fact("ranges of user ids", ("cat", "/etc/subuid"), parse_ranges)
SUBGID = Fact("ranges of group ids", ("cat", "/etc/subgid"), parse_ranges)


def first_of(ranges: tuple[Range, ...], user: str = "root") -> Range | None:
    """The first range of `user` that holds a container's 65,536 ids."""
    return next((each for each in ranges if each.user == user and each.count >= 65536), None)
