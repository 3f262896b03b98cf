"""What the package manager has installed, and which Pythons it could install."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dflash.provision.fact import Fact, Output

Manager = Literal["apt", "dnf", ""]

# The first line says who answers. rpm complains of a package that is not there on standard output, without bars.
_INSTALLED = r"""
if command -v apt-get >/dev/null; then
  echo apt
  dpkg-query -W -f '${Package}|${db:Status-Abbrev}|${Version}\n' -- "$@" 2>/dev/null
elif command -v dnf >/dev/null; then
  echo dnf
  rpm -q --qf '%{NAME}|ii|%{VERSION}-%{RELEASE}\n' -- "$@"
fi
true
"""


@dataclass(frozen=True)
class Installed:
    """The package manager, "" where there is none known here, and the versions of what is wholly installed."""

    manager: Manager
    versions: Mapping[str, str]


def installed(names: tuple[str, ...]) -> Fact[Installed]:
    """Which of the packages `names` are installed. A name may end with `:ARCHITECTURE`."""
    return Fact(f"packages {' '.join(names)}", ("sh", "-c", _INSTALLED, "sh", *names), parse_installed)


def parse_installed(output: Output) -> Installed:
    """Of dpkg's three letters the second says what is: `i` wholly installed, all others not."""
    lines = output.stdout.splitlines()
    manager: Manager = "apt" if lines[:1] == ["apt"] else "dnf" if lines[:1] == ["dnf"] else ""
    rows = [line.split("|") for line in lines[1:] if line.count("|") == 2]
    return Installed(manager, {name: version for name, state, version in rows if state[1:2] == "i"})


OFFERED_PYTHONS = Fact(
    "offered pythons", ("apt-cache", "pkgnames", "python3."), lambda output: parse_offered(output.stdout)
)
"""Python versions, as (3, minor), whose interpreter and venv apt's lists name. Empty where there are no lists."""


def parse_offered(text: str) -> tuple[tuple[int, int], ...]:
    """`apt-cache pkgnames` prints one name a line, in no order."""
    names = set(text.split())
    minors = sorted(int(match[1]) for name in names if (match := re.fullmatch(r"python3\.([0-9]+)", name)))
    return tuple((3, minor) for minor in minors if f"python3.{minor}-venv" in names)
