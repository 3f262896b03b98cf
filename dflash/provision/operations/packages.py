"""Packages of the distribution, by apt or dnf."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import DFlashError
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.packages import Installed, Manager, installed
from dflash.provision.operation import Action, Change, Kept

# What is declared and what that needs, nothing else. Whoever else installs is waited for: dpkg's lock by apt itself,
# that of the lists here, since apt does not; so is the network of a container that has just been started. Lists are
# read again only where those that are there do not do. An installation that was killed halfway is ended first, which
# apt else only asks for.
APT = """
export DEBIAN_FRONTEND=noninteractive
lists() {
  tries=0
  while :; do
    said=$(apt-get -q -o Acquire::Retries=5 update 2>&1) && return
    status=$?
    tries=$((tries + 1))
    case $said in
      *"Could not get lock"*) [ "$tries" -lt 60 ] && sleep 5 && continue ;;
    esac
    printf '%s\\n' "$said" >&2
    return "$status"
  done
}
install() {
  apt-get -q -y --no-install-recommends --allow-downgrades -o DPkg::Lock::Timeout=300 -o Acquire::Retries=5 \\
    -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold install -- "$@"
}
[ -z "$(ls /var/lib/dpkg/updates 2>/dev/null)" ] || dpkg --configure -a || exit
install "$@" >/dev/null 2>&1 || { lists && install "$@"; } || exit
for name; do
  dpkg-query -W -f '${db:Status-Abbrev}\\n' -- "${name%%=*}" 2>/dev/null | grep -q '^.i' && continue
  echo "$name is no package but what others provide: name the one of them that is to be there" >&2
  exit 1
done
"""
DNF = """
dnf -q -y --setopt=install_weak_deps=False install -- "$@" || exit
for name; do
  rpm -q -- "$name" >/dev/null && continue
  echo "$name is no package but what others provide: name the one of them that is to be there" >&2
  exit 1
done
"""


def install(manager: Manager, names: Sequence[str]) -> Action:
    """Install packages; standard input is empty, and nothing is asked.

    Raises:
        DFlashError: there is no package manager that is known here.
    """
    if not manager:
        raise DFlashError("this machine has neither apt nor dnf", cure=f"install by hand: {' '.join(names)}")
    if manager == "dnf":  # which writes a version behind a dash
        return Action(("sh", "-c", DNF, "sh", *(re.sub("=([0-9]+:)?", "-", name) for name in names)))
    return Action(("sh", "-c", APT, "sh", *names))


@dataclass(frozen=True)
class Packages:
    """These packages are installed. A name may be pinned, as `g++=4:12.2.0-3`; of an RPM, to a version with its release
    or without."""

    names: tuple[str, ...]

    def facts(self) -> Sequence[Fact[Any]]:
        return [self._installed]

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        there = known[self._installed]
        now = {name: there.versions.get(_plain(name)) for name in self.names}
        missing = [name for name in self.names if not _as_wanted(name, now[name], there.manager)]
        if not missing:
            yield Kept("packages", ", ".join(f"{_plain(name)} {now[name]}" for name in self.names) + " are installed")
            return
        before = "\n".join(f"{_plain(name)} {now[name] or 'absent'}" for name in missing)
        after = "\n".join(f"{_plain(name)} {_pin(name) or 'installed'}" for name in missing)
        yield Change("packages", before, after, (install(there.manager, missing),))

    @property
    def _installed(self) -> Fact[Installed]:
        return installed(tuple(_unpinned(name) for name in self.names))


def _unpinned(name: str) -> str:
    return name.partition("=")[0]


def _plain(name: str) -> str:
    """Without the version and the architecture, as the package manager names it when asked."""
    return _unpinned(name).partition(":")[0]


def _pin(name: str) -> str:
    return name.partition("=")[2]


def _as_wanted(name: str, version: str | None, manager: Manager) -> bool:
    if version is None or manager != "dnf":
        return version is not None and _pin(name) in ("", version)
    # Without the epoch, which rpm is not asked for.
    return _pin(name).rpartition(":")[2] in ("", version, version.rpartition("-")[0])
