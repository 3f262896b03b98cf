"""What the operations of containers would do, from recorded facts: tests/data/operations has the cases.

A fact that a case does not record is its machine's (machines.yaml). A word such as `binds.WRITE` in an argv stands for
that constant of dflash/provision/operations. What an action reads is the case's `stdin`, unless it says what `after`
says.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from dflash.document import load
from dflash.errors import DFlashError
from dflash.hosts.chain import parse_chain
from dflash.provision.container import ContainerSpec
from dflash.provision.fact import Facts, Output
from dflash.provision.facts import lxc
from dflash.provision.operation import Change, Kept, Operation
from dflash.validation import instance

DATA = Path(__file__).parents[1] / "data" / "operations"
MODULES = ("pct", "lxc", "incus", "docker", "driver")
MACHINES = load(DATA / "machines.yaml").data
CASES = [
    pytest.param(case, id=f"{module}: {case['name']}")
    for module in MODULES
    for case in load(DATA / f"{module}.yaml").data
]


def operation_of(case: dict[str, Any]) -> Operation:
    arguments = dict(case["arguments"])
    arguments["spec"] = instance(ContainerSpec, arguments["spec"])
    if "hop" in arguments:
        arguments["hop"] = parse_chain(arguments["hop"]).hops[0]
    made: Operation = named(case["operation"])(**arguments)
    return made


def named(text: str) -> Any:
    module, _, name = text.partition(".")
    return getattr(importlib.import_module(f"dflash.provision.operations.{module}"), name)


def known(operation: Operation, case: dict[str, Any]) -> Facts:
    facts = {fact.name: fact for fact in operation.facts()}
    machine = MACHINES[case.get("machine", "two-gpus")]
    assert set(case["facts"]) <= set(facts), "a case records what its operation asks for, and nothing else"
    recorded = {name: case["facts"].get(name) or machine[name] for name in facts}
    return Facts({facts[name]: Output(**{"status": 0, **output}) for name, output in recorded.items()})


def plain(outcome: Change | Kept) -> dict[str, Any]:
    if isinstance(outcome, Kept):
        return {"kept": outcome.subject, "why": outcome.why}
    found: dict[str, Any] = {"change": outcome.subject, "before": outcome.before, "after": outcome.after}
    found["argv"] = [list(action.argv) for action in outcome.actions]
    stdin = [action.stdin.decode() for action in outcome.actions if action.stdin]
    stdin = [text for text in stdin if lxc.entries(text) != lxc.entries(outcome.after)]
    return {**found, **({"stdin": stdin} if stdin else {})}


def with_constants(expected: dict[str, Any]) -> dict[str, Any]:
    def word(text: str) -> str:
        return str(named(text)) if re.fullmatch(r"[a-z]+\.[A-Z]+", text) else text

    return {**expected, "argv": [[*map(word, argv)] for argv in expected["argv"]]} if "argv" in expected else expected


@pytest.mark.parametrize("case", CASES)
def test_a_plan_is_what_the_facts_ask_for(case: dict[str, Any]):
    operation = operation_of(case)
    facts = known(operation, case)
    if "error" in case:
        with pytest.raises(DFlashError) as caught:
            list(operation.plan(facts))
        assert str(caught.value) == case["error"]
    else:
        assert [plain(outcome) for outcome in operation.plan(facts)] == [*map(with_constants, case["expect"])]
