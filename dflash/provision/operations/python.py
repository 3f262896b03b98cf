"""A Python that environments can be made with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet

from dflash.errors import DFlashError
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.packages import OFFERED_PYTHONS, installed
from dflash.provision.facts.pythons import PYTHONS, Python
from dflash.provision.operation import Change, Kept
from dflash.provision.operations.packages import install

_MANAGER = installed(("python3",))
_IMAGE = "/opt/env/bin/"
"""Where an image has the Python of its own environment (docker/environment.sh)."""


@dataclass(frozen=True)
class PythonInRange:
    """A Python whose version is in `range` (`>=3.11,<3.13`), with the venv module and its headers, which what
    torch.compile builds includes. It comes from the distribution's packages. In a container of an image that has an
    environment, that is what works, and no other is made: its Python will do."""

    range: str

    def facts(self) -> Sequence[Fact[Any]]:
        return [PYTHONS, OFFERED_PYTHONS, _MANAGER]

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        pythons = known[PYTHONS]
        fits = [each for each in pythons if each.version in SpecifierSet(self.range)]
        subject = f"Python {self.range}"
        whole = [each for each in fits if each.venv and each.headers]
        if whole:
            yield Kept(subject, f"{whole[0].path} is {whole[0].version}, with venv and headers")
            return
        for each in fits:
            if each.path.startswith(_IMAGE):
                yield Kept(subject, f"{each.path} is {each.version}, of the image's own environment")
                return
        # One from elsewhere gets nothing from packages.
        own = [each for each in fits if each.path.startswith("/usr/bin/")]
        manager = known[_MANAGER].manager
        if own:
            minor = own[0].minor
        elif manager == "apt" and (offered := self._best(known[OFFERED_PYTHONS])):
            minor = offered
        else:
            raise self._none(pythons, known)
        name = f"python{_dotted(minor)}"
        names = [name, f"{name}-venv", f"lib{name}-dev"]
        if manager == "dnf":
            name = "python3" if pythons[0].minor == minor else name
            names = [name, f"{name}-devel"]
        before = "\n".join(map(_line, fits)) or "absent"
        yield Change(subject, before, f"{_dotted(minor)}, venv yes, headers yes", (install(manager, names),))

    def _best(self, offered: tuple[tuple[int, int], ...]) -> tuple[int, int] | None:
        """The newest of which any version can be in the range: which micro version it is tells only the package."""
        inside = [each for each in offered if f"{_dotted(each)}.99" in SpecifierSet(self.range)]
        return max(inside, default=None)

    def _none(self, pythons: Sequence[Python], known: Facts) -> DFlashError:
        has = ", ".join(dict.fromkeys(each.version for each in pythons)) or "none"
        offered = ", ".join(_dotted(each) for each in known[OFFERED_PYTHONS])
        what = f"there is no Python {self.range}: this machine has {has}, and its packages offer {offered or 'none'}"
        if known[_MANAGER].manager == "apt" and not offered:
            return DFlashError(f"{what}, apt having no lists", cure="run `apt-get update` there and try again")
        return DFlashError(what, cure="add a package source that has one there, or ask for a Python that it has")


def _dotted(minor: tuple[int, int]) -> str:
    return f"{minor[0]}.{minor[1]}"


def _line(python: Python) -> str:
    words = {True: "yes", False: "no"}
    return f"{_dotted(python.minor)}, venv {words[python.venv]}, headers {words[python.headers]}"
