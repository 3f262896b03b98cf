"""When conditions are decided, and how."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dflash.errors import ConfigError, UsageError
from dflash.hosts.chain import Chain, Local
from dflash.hosts.inventory import Host
from dflash.pipeline.schema import Pipeline, Step
from dflash.pipeline.when import decide_when, host_facts, planned_when, unmet_need
from tests.pipeline.lab import Lab
from tests.pipeline.sample_kinds import KINDS, CheckConfig

PIPELINE = Pipeline("p", "", "p.yaml", ())
HOST = Host("gpu1", Chain((Local(),)), gpus=8)
FACTS = {
    "host": host_facts(HOST),
    "steps": {
        "train": {"status": "skipped", "result": {"loss": 0.5, "heldout": {"loss": 0.7}, "name": "a"}},
        "other": {"status": "failed", "result": None},
        "train@seed=1": {"status": "ok", "result": {}},
    },
    "failed": True,
}


def step(when: str, **changes: Any) -> Step:
    plain = Step("s", KINDS["check"], ("train",), CheckConfig(), {}, None, when, matrix={"seed": 1, "lr": 5e-4})
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ("", True),
        ("true", True),
        ("not true", False),
        ("matrix.seed == 1", True),
        ("matrix.seed == -1 or matrix.lr < 1e-3", True),
        ("matrix['seed'] in [2, 3]", False),
        ("0 < matrix.seed < 2", True),
        ("host.gpus >= 8 and host.name == 'gpu1'", True),
        ("host.name not in ('gpu1', 'gpu2')", False),
        ("'gpu' in host.name", True),
        ("steps.train.status == 'ok'", True),
        ("steps.train.loss <= 0.5", True),
        ("steps.train.heldout.loss > steps.train.loss", True),
        ("steps['train@seed=1'].status == 'ok'", True),
        ("steps.other.status == 'failed' and failed", True),
        ("steps.other.loss == null", True),
        ("steps.other.loss != null and steps.other.loss < 3", False),
        ("  matrix.seed\n  == 1", True),
    ],
)
def test_a_condition_is_decided(when: str, holds: bool):
    assert decide_when(step(when), FACTS, PIPELINE) is holds


@pytest.mark.parametrize(
    ("when", "says"),
    [
        ("steps.train.name < 3", "'a' and 3 can not be compared so, in s; compare numbers with numbers"),
        ("host.name in 3", "can not be compared so"),
        ("steps.train.lss < 3", "the result of 'train' has no 'lss', in s; did you mean 'loss'?"),
        ("steps.train.loss.x < 3", "the result of 'train' has no 'loss.x'"),
    ],
)
def test_facts_that_do_not_fit_a_condition_are_named(when: str, says: str):
    with pytest.raises(UsageError) as caught:
        decide_when(step(when), FACTS, PIPELINE)
    assert str(caught.value).startswith("p.yaml: step s: ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("when", "known"),
    [
        ("", True),
        ("matrix.seed == 2 or host.gpus == 8", True),
        ("matrix.seed == 2", False),
        ("steps.train.status == 'ok'", None),
        ("failed or matrix.seed == 1", None),
    ],
)
def test_what_asks_for_matrix_and_host_alone_is_decided_when_planning(when: str, known: bool | None):
    assert planned_when(step(when), HOST, PIPELINE) is known


def test_a_step_of_a_matrix_is_meant_by_the_name_that_its_need_has(lab: Lab):
    lab.file.write_text(
        "name: x\nsteps:\n  - {name: t, uses: target, matrix: {seed: [1, 2]}}\n"
        "  - {name: train, uses: train, needs: [t],\n"
        "     when: \"steps.t.characters > 3 and steps['t'].status == 'ok'\"}\n"
    )
    assert lab.load().step("train@seed=2").when == (
        "steps['t@seed=2'].characters > 3 and steps['t@seed=2'].status == 'ok'"
    )


def test_one_step_of_a_matrix_can_be_named_where_a_need_stands_for_several(lab: Lab):
    text = (
        "name: x\nsteps:\n  - {name: t, uses: target, matrix: {seed: [1, 2]}}\n"
        "  - name: late\n    uses: check\n    needs: [t]\n    when: steps.t.status == 'ok'\n"
    )
    lab.file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        lab.load()
    assert str(caught.value) == (
        f"{lab.file}:7:11: 't' stands for 2 steps, so has no one outcome; name one of them: steps['t@seed=1']"
    )
    lab.file.write_text(text.replace("steps.t.", "steps['t@seed=1']."))
    assert lab.load().step("late").when == "steps['t@seed=1'].status == 'ok'"


def test_a_step_is_left_out_when_all_that_a_need_stands_for_is():
    waits = step("", needs=("a@x=1", "a@x=2", "b"))
    assert unmet_need(waits, {"a@x=1"}) is None
    assert unmet_need(waits, {"a@x=1", "a@x=2"}) == "it needs a, which is left out"
    assert unmet_need(waits, {"b"}) == "it needs b, which is left out"
    assert unmet_need(replace(waits, is_last=True), {"b"}) is None


@pytest.mark.parametrize(
    ("when", "says"),
    [
        (
            "host.gpus > 'a'",
            "0 and 'a' can not be compared so, in a; compare numbers with numbers and texts with texts",
        ),
        ("host.name in host.gpus", "'local' and 0 can not be compared so, in a; compare"),
    ],
)
def test_a_condition_that_can_not_be_decided_when_planning_is_named_with_its_place(lab: Lab, when: str, says: str):
    lab.file.write_text(f"name: x\nsteps:\n  - name: a\n    uses: check\n    when: {when}\n")
    with pytest.raises(ConfigError) as caught:
        lab.plan()
    assert str(caught.value).startswith(f"{lab.file}:5:11: {says}")
