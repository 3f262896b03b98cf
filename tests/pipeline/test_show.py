"""What a terminal is shown of a run."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.pipeline.graph import drawing
from dflash.pipeline.keys import HOME
from dflash.pipeline.kinds import load_kinds
from dflash.pipeline.launchers.config import Slurm
from dflash.pipeline.plan import Plan, make_plan
from dflash.pipeline.schema import load_pipeline
from dflash.pipeline.show import gpu_line, show_plan, show_record
from tests.pipeline.lab import Lab
from tests.pipeline.report.sample import OLD, RECORD, TRAINED, matrix_record
from tests.pipeline.test_plan import EmptyShelf


def shown(record: dict[str, Any]) -> list[str]:
    show_record(record, "runs/it", stream := io.StringIO())
    return stream.getvalue().splitlines()


def test_how_busy_each_role_was_is_a_line():
    assert "busy: targets 62%, drafters 98%" in shown(RECORD)


def test_of_several_trainings_each_that_has_ended_has_its_line():
    assert [line for line in shown(matrix_record()) if "busy" in line] == [
        "train@seed=2: busy: targets 62%, drafters 98%"
    ]


@pytest.mark.parametrize("result", [None, {}, {name: value for name, value in TRAINED.items() if name != "busy"}])
def test_a_training_that_noted_nothing_has_none(result: dict[str, Any] | None):
    steps = [{**each, "result": result} if each["kind"] == "train" else each for each in OLD["steps"]]
    assert not any("busy" in line for line in shown({**OLD, "steps": steps}))


def eight_gpus(*overrides: str, **train: Any) -> Plan:
    pipeline = load_pipeline(HOME / "pipelines" / "dflash-8gpu.yaml", load_kinds(), overrides)
    steps = tuple(replace(each, **train) if each.name == "train" else each for each in pipeline.steps)
    return make_plan(replace(pipeline, steps=steps), Host("gpu1", parse_chain("ssh:gpu1")), None, EmptyShelf())


def test_a_plan_says_how_many_gpus_each_step_needs():
    plan = eight_gpus()
    assert gpu_line(plan) == "prewarm, train need 8 GPUs; evaluate needs a GPU."
    show_plan(plan, stream=(stream := io.StringIO()))
    lines = stream.getvalue().splitlines()
    assert any(line.startswith("train     train     run   needs 8 ") for line in lines)
    assert any(line.startswith("evaluate  evaluate  run   needs one ") for line in lines)
    assert {each["name"]: each["gpus"] for each in plan.as_json()["steps"] if each["needs_gpu"]} == {
        "prewarm": 8,
        "train": 8,
        "evaluate": 1,
    }
    assert "needs 8 GPUs" in drawing(plan)
    assert gpu_line(eight_gpus("train.topology.targets=1")).startswith("prewarm, train need 4 GPUs; ")
    assert gpu_line(eight_gpus(launcher=Slurm(nodes=2))) == (
        "train needs 8 GPUs; prewarm needs 4 GPUs; evaluate needs a GPU."
    )


def test_a_plan_without_gpus_says_so_and_of_one_what_the_host_has(lab: Lab):
    assert gpu_line(lab.plan()) == "No step needs a GPU."
    plan = lab.plan("train.gpus=1")
    assert gpu_line(plan) == "prewarm, train need a GPU."
    assert gpu_line(replace(plan, host=replace(plan.host, gpus=2))).endswith(" need a GPU. local has 2.")
