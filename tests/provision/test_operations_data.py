"""What each operation would do, from recorded facts: tests/data/operations has the cases.

Of an operation on a container, a fact that a case does not record is its machine's (machines.yaml). A word such as
`writing.WRITE` in an argv stands for that constant of dflash/provision/operations. What an action reads is the case's
`stdin`, where that is more than what `after` says.
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
from dflash.provision.busy import ends_work
from dflash.provision.container import ContainerSpec
from dflash.provision.fact import Facts, Output
from dflash.provision.facts import lxc
from dflash.provision.operation import Action, Change, Kept, Operation
from dflash.validation import instance

DATA = Path(__file__).parents[1] / "data" / "operations"
CONTAINERS = ("pct", "lxc", "incus", "docker", "driver")
HOSTS = ("packages", "user", "directory", "python", "uv", "persistence", "uvm", "limits", "mounts")
MACHINES = load(DATA / "machines.yaml").data
CASES = [
    pytest.param(case, id=f"{module}: {case.get('name', place)}")
    for module in (*HOSTS, *CONTAINERS)
    for place, case in enumerate(load(DATA / f"{module}.yaml").data)
]


def operation_of(case: dict[str, Any]) -> Operation:
    arguments = dict(case["arguments"])
    if "spec" not in arguments:
        return instance(named(case["operation"]), arguments)
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
    machine = MACHINES[case.get("machine", "two-gpus")] if "spec" in case["arguments"] else {}
    assert set(case["facts"]) <= set(facts), "a case records what its operation asks for, and nothing else"
    recorded = {name: case["facts"][name] if name in case["facts"] else machine[name] for name in facts}
    return Facts({facts[name]: Output(**{"status": 0, **output}) for name, output in recorded.items()})


def plain(outcome: Change | Kept) -> dict[str, Any]:
    if isinstance(outcome, Kept):
        return {"kept": outcome.subject, "why": outcome.why}
    found: dict[str, Any] = {"change": outcome.subject, "before": outcome.before, "after": outcome.after}
    found["argv"] = [list(action.argv) for action in outcome.actions]
    found |= {} if any(action.root for action in outcome.actions) else {"root": False}
    texts = [action.stdin.decode() for action in outcome.actions if action.stdin]
    stdin = [text for text in texts if text != outcome.after and lxc.entries(text) != lxc.entries(outcome.after)]
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
        assert case["error"] in str(caught.value)
    else:
        assert [plain(outcome) for outcome in operation.plan(facts)] == [*map(with_constants, case["expect"])]


@pytest.mark.parametrize("case", [case for case in CASES if "hop" in case.values[0]["arguments"]])
def test_a_change_that_ends_what_runs_in_a_container_is_known_as_one(case: dict[str, Any]):
    for each in case.get("expect", []):
        if "change" in each:
            actions = tuple(Action(tuple(words)) for words in with_constants(each)["argv"])
            assert ends_work(Change(each["change"], "", "", actions)) == ("what runs in it ends" in each["after"])


@pytest.mark.parametrize("module", HOSTS)
def test_every_operation_on_a_host_has_cases_that_change_keep_and_refuse(module: str):
    outcomes = {
        key
        for case in load(DATA / f"{module}.yaml").data
        for each in case.get("expect", [case])
        for key in ("change", "kept", "error")
        if key in each
    }
    assert outcomes >= ({"change", "kept"} if module == "user" else {"change", "kept", "error"})
