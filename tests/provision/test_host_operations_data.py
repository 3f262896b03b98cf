"""What each operation on a host would do, from recorded facts: tests/data/operations has the cases.

A word such as `packages.APT` in an argv stands for that constant of dflash/provision/operations.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from dflash.document import load
from dflash.errors import DFlashError
from dflash.provision.fact import Facts, Output
from dflash.provision.operation import Change, Operation
from dflash.validation import instance

DATA = Path(__file__).parents[1] / "data" / "operations"
MODULES = ("packages", "user", "directory", "python", "uv", "persistence", "uvm", "limits", "mounts")
CASES = [(module, place, case) for module in MODULES for place, case in enumerate(load(DATA / f"{module}.yaml").data)]


def operation_of(case: dict[str, Any]) -> Operation:
    return instance(named(case["operation"]), case["arguments"])


def named(text: str) -> Any:
    module, _, name = text.partition(".")
    return getattr(importlib.import_module(f"dflash.provision.operations.{module}"), name)


def known(operation: Operation, recorded: dict[str, dict[str, Any]]) -> Facts:
    facts = {fact.name: fact for fact in operation.facts()}
    assert set(facts) == set(recorded), "a case records what its operation asks for, and nothing else"
    return Facts({facts[name]: Output(**{"status": 0, **output}) for name, output in recorded.items()})


def plain(outcome: Any) -> dict[str, Any]:
    if isinstance(outcome, Change):
        argv = [list(action.argv) for action in outcome.actions]
        return {"change": outcome.subject, "before": outcome.before, "after": outcome.after, "argv": argv}
    return {"kept": outcome.subject, "why": outcome.why}


def with_constants(expected: dict[str, Any]) -> dict[str, Any]:
    def word(text: str) -> str:
        return named(text) if re.fullmatch(r"[a-z]+\.[A-Z]+", text) else text

    return {**expected, "argv": [[*map(word, argv)] for argv in expected["argv"]]} if "argv" in expected else expected


@pytest.mark.parametrize(
    "case", [case for _, _, case in CASES], ids=[f"{module}-{place}" for module, place, _ in CASES]
)
def test_a_plan_is_what_the_facts_ask_for(case: dict[str, Any]):
    operation = operation_of(case)
    facts = known(operation, case["facts"])
    if "error" in case:
        with pytest.raises(DFlashError) as caught:
            list(operation.plan(facts))
        assert case["error"] in str(caught.value)
    else:
        assert [plain(outcome) for outcome in operation.plan(facts)] == [*map(with_constants, case["expect"])]


@pytest.mark.parametrize("module", MODULES)
def test_every_operation_has_cases_that_change_keep_and_refuse(module: str):
    outcomes = {
        key
        for name, _, case in CASES
        if name == module
        for each in case.get("expect", [case])
        for key in ("change", "kept", "error")
        if key in each
    }
    assert outcomes >= ({"change", "kept"} if module == "user" else {"change", "kept", "error"})
