"""The kernels for GPUs, interpreted on a CPU by the Triton of the environment that trains."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.race.environments import REPOSITORY, environment_of


@pytest.mark.nightly
def test_the_kernels_compute_what_torch_does():
    with environment_of("train-cu130") as environment:
        program = [environment.python, "-B", REPOSITORY / "tests" / "model" / "interpreted.py"]
        settings = {"PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(program, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for differences in json.loads(done.stdout).values():
        assert all(each < 1e-5 for each in differences)
