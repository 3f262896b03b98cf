"""Every fact, on what real tools printed: recorded output, and the value that is read from it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash.provision.checks.order import host_facts, inside_facts
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import HUNG, MISSING, Fact, Output
from tests.provision.facts.plain import plain

DATA = Path(__file__).parents[1] / "data" / "facts"
MODULES = (
    "clock",
    "cuda",
    "engine",
    "gpus",
    "index",
    "kernellog",
    "links",
    "login",
    "nvidia",
    "resources",
    "system",
)
CASES = [
    pytest.param(module, case, id=f"{module}.{case['fact']}: {case['name']}")
    for module in MODULES
    for case in yaml.safe_load((DATA / f"{module}.yaml").read_text())
]


def fact_of(module: str, name: str) -> Fact[Any]:
    found = getattr(importlib.import_module(f"dflash.provision.facts.{module}"), name)
    assert isinstance(found, Fact)
    return found


@pytest.mark.parametrize(("module", "case"), CASES)
def test_a_value_is_read_from_what_was_printed(module: str, case: dict[str, Any]) -> None:
    assert plain(fact_of(module, case["fact"]).parse(Output(**{"status": 0, **case["output"]}))) == case["value"]


def own_facts() -> list[Fact[Any]]:
    loaded = [importlib.import_module(f"dflash.provision.facts.{module}") for module in MODULES]
    return [each for module in loaded for each in vars(module).values() if isinstance(each, Fact)]


def test_every_fact_has_a_recorded_output() -> None:
    recorded = {fact_of(case.values[0], case.values[1]["fact"]) for case in CASES}  # type: ignore[arg-type, index, call-overload]
    assert recorded == set(own_facts())


@pytest.mark.parametrize("output", [Output(MISSING), Output(HUNG), Output(1, "\0\n:,/x 1\n\n", "?"), Output(0, "\n")])
def test_no_parser_raises_whatever_was_printed(output: Output) -> None:
    for fact in {*own_facts(), *host_facts(Wanted()), *inside_facts(Wanted())}:
        fact.parse(output)


def test_facts_have_names_of_their_own() -> None:
    names = [fact.name for fact in dict.fromkeys([*host_facts(Wanted()), *inside_facts(Wanted())])]
    assert len(names) == len(set(names))
