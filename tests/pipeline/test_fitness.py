"""A host that is not fit for a pipeline is refused before anything is sent there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dflash.errors import EnvironmentMismatch
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.pipeline.fitness import gpus_of, require_fit
from dflash.pipeline.keys import HOME
from dflash.pipeline.kinds import load_kinds
from dflash.pipeline.launchers.config import Slurm, Torchrun
from dflash.pipeline.schema import Pipeline, load_pipeline


def pipeline(name: str, *overrides: str) -> Pipeline:
    return load_pipeline(HOME / "pipelines" / f"{name}.yaml", load_kinds(), overrides)


@pytest.fixture
def here(tmp_path: Path) -> Host:
    return Host("here", parse_chain("local"), root=str(tmp_path))


def test_a_training_asks_for_a_gpu_for_each_worker_and_one_on_cpus_for_none():
    assert gpus_of(pipeline("dflash-8gpu")) == 8
    assert gpus_of(pipeline("dflash-8gpu", "train.topology.targets=1", "train.topology.drafters=1")) == 2
    assert gpus_of(pipeline("local")) == 0


def test_work_that_is_done_on_other_hosts_asks_for_no_gpu_of_the_runs():
    steps = pipeline("dflash-8gpu").steps
    for change in ({"host": "gpu2"}, {"launcher": Torchrun(("gpu2", "gpu3"))}, {"launcher": Slurm(nodes=2)}):
        away = tuple(replace(step, **change) if step.kind.name == "train" else step for step in steps)
        assert gpus_of(replace(pipeline("dflash-8gpu"), steps=away)) == 1


def test_a_machine_without_gpus_is_fit_for_a_pipeline_that_needs_none(here: Host):
    require_fit(here, pipeline("local"))


def test_it_is_not_for_one_that_does_and_the_layer_is_named(here: Host):
    with pytest.raises(EnvironmentMismatch, match=r"^here, host: .*driver.*\./inv check --host here shows the whole$"):
        require_fit(here, pipeline("dflash-8gpu"))
