"""The layers on the way to a GPU, in the order in which they are judged: the first that fails is the one to mend.

facts/remote.md counts seven. `resources` is what the end of the chain has to work with, `many` what several GPUs need
beside that. A layer's name is its module's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from dflash.finding import Finding
from dflash.provision.checks import container, cuda, devices, docker, host, inside, many, resources, ssh
from dflash.provision.checks.faults import fault
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Fact, Facts


class Layer(Protocol):
    """A module of this folder."""

    @property
    def __name__(self) -> str: ...

    @property
    def HOST(self) -> tuple[Fact[Any], ...]: ...

    @property
    def INSIDE(self) -> tuple[Fact[Any], ...]: ...

    def judge(self, host: Facts, inside: Facts, want: Wanted) -> Iterator[Finding]: ...


ORDER: tuple[Layer, ...] = (ssh, host, devices, container, inside, resources, cuda, docker, many)


def name_of(layer: Layer) -> str:
    """`cuda`, of dflash.provision.checks.cuda."""
    return layer.__name__.rpartition(".")[2]


def host_facts(want: Wanted) -> list[Fact[Any]]:
    """What is asked of the host, each once. A layer may ask for more by what is wanted: `asked(want)`."""
    more = [getattr(layer, "asked", lambda want: ())(want) for layer in ORDER]
    return list(dict.fromkeys(fact for layer, asked in zip(ORDER, more, strict=True) for fact in (*layer.HOST, *asked)))


def inside_facts(want: Wanted) -> list[Fact[Any]]:
    """What is asked of the end of the chain, each once. A layer may ask for more by what is wanted:
    `asked_inside(want)`."""
    return list(dict.fromkeys(fact for layer in ORDER for fact in _inside(layer, want)))


def _inside(layer: Layer, want: Wanted) -> tuple[Fact[Any], ...]:
    more: tuple[Fact[Any], ...] = getattr(layer, "asked_inside", lambda want: ())(want)
    return (*layer.INSIDE, *more)


def judge(host: Facts, inside: Facts | None, want: Wanted) -> list[Finding]:
    """Every layer's findings, in order. Without the inside, which could not be reached, the layers that need none of
    it."""
    found: list[Finding] = []
    told: set[str] = set()
    for layer in ORDER:
        if inside is not None or not layer.INSIDE:
            findings = [*layer.judge(host, inside or Facts({}), want), *_silent(layer, host, inside, want, told)]
            found += [replace(each, layer=each.layer or name_of(layer)) for each in findings]
    return found


def _silent(layer: Layer, host: Facts, inside: Facts | None, want: Wanted, told: set[str]) -> Iterator[Finding]:
    """What was asked for a layer and not answered in time, unless that was `told` of an earlier one: of what a layer
    then says, or does not say, that may be why."""
    asked = [(host, fact) for fact in layer.HOST] + [(inside, fact) for fact in _inside(layer, want) if inside]
    names = [fact.name for known, fact in asked if known and fact in known and known.outputs[fact].hung]
    new = [name for name in dict.fromkeys(names) if name not in told]
    told.update(new)
    if new:
        cure = "look there for what hangs: a dead GPU, a network file system whose server is gone"
        yield fault("no-answer", ", ".join(new), "no answer in time", cure, "warn")


def first_failing(findings: Iterable[Finding]) -> str:
    """The name of the first layer with a finding that blocks; "" when nothing does."""
    return next((each.layer for each in findings if each.severity == "block"), "")
