"""A kernel has one key, whether a process compiles first or finds; checked with the Triton of each environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.race.environments import REPOSITORY, Environment


def asked(environment: Environment, mode: str, cache: Path) -> dict[str, Any]:
    """What `keys.py` printed, with an empty cache of Triton's."""
    settings = {"PYTHONPATH": str(REPOSITORY), "TRITON_CACHE_DIR": str(cache / mode)}
    bytecode = {"PYTHONPYCACHEPREFIX": str(environment.folder / "bytecode")}
    program = REPOSITORY / "tests" / "race" / "keys.py"
    command = [environment.python, program, mode]
    done = subprocess.run(command, env=os.environ | settings | bytecode, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.nightly
def test_in_a_gates_turn_kernels_have_the_keys_of_a_process_that_finds_all(environment: Environment, tmp_path: Path):
    if environment.name == "local":
        pytest.skip("its torch is for CPUs, and has no Triton")
    compiling, finding, gated = (asked(environment, mode, tmp_path) for mode in ("compiling", "finding", "gate"))
    assert gated["backend"] == finding["backend"]
    if environment.torch.startswith("2.11."):  # later builds come with no ptxas of their own
        assert compiling["backend"] != finding["backend"]


@pytest.mark.nightly
def test_a_kernel_that_triton_makes_is_counted_and_one_that_it_finds_is_not(environment: Environment, tmp_path: Path):
    if environment.name == "local":
        pytest.skip("its torch is for CPUs, and has no Triton")
    assert asked(environment, "gate", tmp_path)["kernels"] == 1
