"""The faults that users report, as what the tools print of them, and what is found.

A case is a machine of tests/data/machines with other answers to some facts: whole ones, or edits of what is printed.
`expect` has the findings that are not ok, in order.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash.finding import Finding
from dflash.hosts.chain import Pct, parse_chain
from dflash.provision.checks import cuda, devices, docker, host, many, resources, ssh
from dflash.provision.checks.faults import CAUSES
from dflash.provision.checks.order import ORDER, first_failing, host_facts, inside_facts, judge, name_of
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Fact, Facts, Output

DATA = Path(__file__).parents[1] / "data"
LAYERS = (ssh, host, devices, resources, cuda, docker, many)
PCT = Wanted(gpus=8, container=Pct(200), root="/root/dflash")
MACHINES = DATA / "machines"
CASES = [
    pytest.param(case, id=f"{name_of(layer)}: {case['name']}")
    for layer in LAYERS
    for case in yaml.safe_load((DATA / "checks" / f"{name_of(layer)}.yaml").read_text())
]


@functools.cache
def machine(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((MACHINES / f"{name}.yaml").read_text()))


def answered(recorded: dict[str, Any], changes: dict[str, Any], want: Wanted = PCT) -> Facts:
    """The facts of a machine whose recorded answers have changed."""
    facts = {fact.name: fact for fact in (*host_facts(PCT), *inside_facts(want))}
    outputs: dict[Fact[Any], Output] = {}
    for name, answer in {**recorded, **changes}.items():
        if "edit" in answer:
            text = recorded[name]["stdout"]
            for old, new in answer["edit"]:
                assert old in text, f"{name} has no {old!r}"
                text = text.replace(old, new)
            answer = {**recorded[name], "stdout": text}
        outputs[facts[name]] = Output(answer.get("status", 0), answer.get("stdout", ""), answer.get("stderr", ""))
    return Facts(outputs)


def found_in(case: dict[str, Any]) -> list[Finding]:
    recorded = machine(case.get("machine", "eight"))
    want = {"gpus": 8, "container": "pct:200", "root": "/root/dflash", **case.get("want", {})}
    want["container"] = parse_chain(want["container"]).hops[0] if want["container"] else None
    wanted = Wanted(**want)
    outside = answered(recorded["host"], case.get("host", {}), wanted)
    if case.get("inside", {}) is None:
        inside = None
    elif "inside" in recorded:
        inside = answered(recorded["inside"], case.get("inside", {}), wanted)
    else:
        inside = outside
    layers = [layer for layer in LAYERS if inside is not None or not layer.INSIDE]
    return [each for layer in layers for each in layer.judge(outside, inside or Facts({}), wanted)]


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_found_and_nothing_else(case: dict[str, Any]) -> None:
    findings = found_in(case)
    assert [f"{each.severity} {each.name}" for each in findings if each.severity != "ok"] == case["expect"]
    assert case.get("cure", "") in " | ".join(each.cure for each in findings)
    for each in findings:
        assert each.subject
        assert each.found
        if each.severity != "ok":
            assert each.cause
            assert each.cure


def test_every_kind_of_fault_has_a_case() -> None:
    expected = {each.split()[1] for case in CASES for each in case.values[0]["expect"]}
    assert expected | {"no-answer"} == set(CAUSES)


def test_the_first_layer_that_fails_is_named() -> None:
    found = [Finding("warn", "a", "b", layer="ssh"), Finding("block", "c", "d", layer="devices")]
    assert first_failing([*found, Finding("block", "e", "f", layer="cuda")]) == "devices"
    assert first_failing(found[:1]) == ""


def test_what_did_not_answer_is_said_once_at_the_first_layer_that_asked() -> None:
    recorded = machine("bare")
    names = ("disk of the work", "nvlinks", "gpus")
    hung = {name: {"status": 124, "stderr": "it did not end in 30 s"} for name in names}
    known = answered(recorded["host"], hung, Wanted())
    found = [(each.layer, each.subject) for each in judge(known, known, Wanted()) if each.name == "no-answer"]
    assert found == [("host", "gpus"), ("resources", "disk of the work"), ("many", "nvlinks")]


def test_a_machine_with_which_nothing_is_wrong_is_well_on_every_layer() -> None:
    recorded = machine("eight")
    found = judge(answered(recorded["host"], {}), answered(recorded["inside"], {}), PCT)
    assert [each for each in found if each.severity != "ok"] == []
    layers = list(dict.fromkeys(each.layer for each in found))
    assert layers == [name_of(layer) for layer in ORDER if layer is not docker]  # no engine is there


REAL = Wanted(gpus=2, root="/root/dflash", min_driver="580.65.06")


def test_a_real_machine_with_two_gpus_is_well_and_its_gpus_are_told_as_they_are() -> None:
    known = answered(machine("h200-x2")["host"], {})
    found = judge(known, known, REAL)
    assert [each for each in found if each.severity != "ok"] == []
    told = {each.subject: each.found for each in found}
    assert told["GPUs"] == "2 x NVIDIA H200, 140 GiB"
    assert told["NVIDIA driver"] == "580.159.04, open module"
    assert told["CUDA"] == "memory on each of 2 GPUs"
    assert told["NVLink"] == "18 links a GPU, 1 of 1 pairs"


def test_where_cuda_is_shown_no_gpu_though_nvidia_smi_is_that_is_what_is_wrong() -> None:
    # On that machine, with CUDA_VISIBLE_DEVICES set to nothing, cuInit gave 100.
    known = answered(machine("h200-x2")["host"], {"cuda": {"stdout": "nvml 0 2\ninit 100\n"}})
    wrong = [each for each in judge(known, known, REAL) if each.severity != "ok"]
    assert [(each.layer, each.subject) for each in wrong] == [("cuda", "CUDA")]
    assert "nvidia-smi works all the same" in wrong[0].found
