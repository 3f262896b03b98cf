"""Layers 4 and 5, the container and its inside: what tools print of a fault, and what is found.

A fact of the host that a case does not record is that of the two-gpus of tests/data/operations/machines.yaml.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash.document import load
from dflash.finding import Finding
from dflash.hosts.chain import parse_chain
from dflash.provision.checks import container, inside
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Fact, Facts, Output

DATA = Path(__file__).parents[1] / "data"
MACHINE = load(DATA / "operations" / "machines.yaml").data["two-gpus"]
CASES = [
    pytest.param(module, case, id=f"{module}: {case['name']}")
    for module in ("container", "inside")
    for case in load(DATA / "checks" / f"{module}.yaml").data
]


def answered(facts: tuple[Fact[Any], ...], recorded: dict[str, Any]) -> Facts:
    assert set(recorded) <= {fact.name for fact in facts}
    found = {fact: recorded.get(fact.name) or MACHINE[fact.name] for fact in facts}
    return Facts({fact: Output(**{"status": 0, **output}) for fact, output in found.items()})


def found_in(module: str, case: dict[str, Any]) -> list[Finding]:
    hop = case["want"].get("container")
    want = Wanted(case["want"].get("gpus", 0), parse_chain(hop).hops[0] if hop else None)
    if module == "inside":
        return list(inside.judge(Facts({}), answered(inside.INSIDE, case["inside"]), want))
    return list(container.judge(answered((*container.HOST, *container.asked(want)), case["host"]), Facts({}), want))


@pytest.mark.parametrize(("module", "case"), CASES)
def test_what_is_wrong_is_found_and_nothing_else(module: str, case: dict[str, Any]):
    found = found_in(module, case)
    wrong = [each for each in found if each.severity != "ok"]
    assert [f"{each.severity} {each.name}" for each in wrong] == case["expect"]
    assert all(each.subject and each.found and each.cure and each.cause for each in wrong)
    assert case.get("says", "") in " | ".join(f"{each.subject}: {each.found}" for each in wrong)
    assert case.get("cure", "") in " | ".join(each.cure for each in wrong)
    assert case.get("ok", "") in " | ".join(each.found for each in found if each.severity == "ok")


@pytest.mark.parametrize("module", [container, inside])
def test_every_kind_of_fault_has_a_case(module: Any):
    kinds = {each.partition(" ")[2] for name, case in (param.values for param in CASES) for each in case["expect"]}
    assert set(getattr(module, "CAUSES", {})) <= kinds


def test_a_container_that_nobody_was_asked_about_is_not_judged():
    want = Wanted(8, parse_chain("pct:200").hops[0])
    assert list(container.judge(answered(container.HOST, {}), Facts({}), want)) == []
