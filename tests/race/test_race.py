"""The race in torch.compile on CPU, and that the gate closes it, on the torch of every environment.

Without the gate the threads of a process die of each other's compiling; how, depends on the release. Failure rates are
chance's, and printed: what is asserted of them is what has never been otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.race.environments import REPOSITORY, Environment, Result, environment_of, failures, rate

KINDS = {"fx", "annotation", "fallback"}
EAGER = ("--mask", "eager")
"""Newer releases can die of a block mask that is built eagerly while another thread compiles."""


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], environment: Environment) -> Callable[[str, list[Result]], None]:
    """Print the rate of some starts even where all is well."""

    def shown(what: str, results: list[Result]) -> None:
        with capsys.disabled():
            print(f"\n{rate(environment, what, results)}")

    return shown


def assert_all_went_well(results: list[Result]) -> None:
    for each in results:
        assert each["outcome"] == "ok", each
        assert each["eager_calls"] == 0, each
        assert not each["flag_after_prewarm"], each
        assert not each["flag_up"], each
        of_each_thread = 2 if each["mask"] == "compiled" else 1
        assert each["graphs"] == each["graphs_when_sealed"] == of_each_thread * len(each["steps"]), each
        assert each["worst_error"] < 1e-4, each


@pytest.mark.nightly
def test_a_gated_start_on_a_cold_cache_ends_well_with_the_flag_down_and_nothing_run_eagerly():
    with environment_of("local") as here:
        assert_all_went_well([here.start("gate", here.folder / "cache", "--threads", "2", "--steps", "100")])


@pytest.mark.nightly
def test_without_the_gate_a_start_dies_of_the_flag_or_of_another_known_error(environment: Environment, say):
    if environment.dies_of_the_flag:
        results = environment.starts("none", 5)
    else:
        objects = environment.objects()
        results = environment.starts("none", 2, objects=objects)
        results += environment.starts("none", 3, *EAGER, objects=objects)
    say("without the gate, cold", results)
    failed = failures(results)
    assert {each["kind"] for each in failed} <= KINDS, failed
    if environment.dies_of_the_flag:
        assert "fx" in {each["kind"] for each in failed}
        assert any("using FX to symbolically trace a dynamo-optimized function" in each["error"] for each in failed)


@pytest.mark.nightly
def test_with_the_gate_none_of_twenty_starts_fails(environment: Environment, say):
    objects = environment.objects()
    results = environment.starts("gate", 3)
    results += environment.starts("gate", 11, objects=objects)
    results += environment.starts("gate", 6, *EAGER, objects=objects)
    say("with the gate, cold", results)
    assert_all_went_well(results)
    assert [each["hits"] for each in results] == [0] * 20


@pytest.mark.nightly
def test_a_lock_round_each_threads_first_step_is_not_enough(environment: Environment, say):
    results: list[Result] = []
    while len(results) < (10 if environment.dies_of_the_flag else 2) and not failures(results):
        results += environment.starts("first-call-lock", 1, objects=environment.objects())
    say("with a lock round first steps, until one failed", results)
    kinds = {each["kind"] for each in failures(results)}
    assert kinds == {"fx"} if environment.dies_of_the_flag else kinds <= KINDS


@pytest.mark.nightly
def test_with_torchs_check_off_calls_run_eagerly_and_nobody_says_so(environment: Environment, say):
    results = environment.starts("check-off", 4 if environment.dies_of_the_flag else 2, objects=environment.objects())
    say("with torch's check off", results)
    assert "fx" not in {each["kind"] for each in failures(results)}
    if environment.dies_of_the_flag:
        assert sum(each.get("eager_calls", 0) for each in results) > 0


@pytest.mark.nightly
def test_on_a_warm_cache_a_gated_start_finds_every_graph_and_never_fails(environment: Environment, say, tmp_path: Path):
    gated, plain = [], []
    for number in range(3):
        for mode, filled_by, results in (("gate", "gate", gated), ("none", "alone", plain)):
            cache = shutil.copytree(environment.warm(filled_by), tmp_path / f"{mode}{number}")
            results.append(environment.start(mode, cache))
    say("with the gate, warm", gated)
    say("without the gate, warm", plain)
    assert_all_went_well(gated)
    assert all(each["hits"] and not each["misses"] for each in gated)
    assert {each["kind"] for each in failures(plain)} <= KINDS


@pytest.mark.nightly
def test_without_a_gpu_the_program_for_the_hang_says_so():
    done = subprocess.run(
        [sys.executable, REPOSITORY / "tests" / "race" / "hang.py", "gate"],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, json.loads(done.stdout)["outcome"]) == (2, "no GPU"), done.stderr
