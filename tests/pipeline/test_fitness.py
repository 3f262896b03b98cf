"""A host that is not fit for a pipeline is refused before anything is sent there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

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
    assert gpus_of(pipeline("dflash-8gpu"), {}) == 8
    assert gpus_of(pipeline("dflash-8gpu", "train.topology.targets=1", "train.topology.drafters=1"), {}) == 2
    assert gpus_of(pipeline("local"), {}) == 0


def with_training(**change: Any) -> Pipeline:
    made = pipeline("dflash-8gpu")
    return replace(made, steps=tuple(replace(s, **change) if s.kind.name == "train" else s for s in made.steps))


def test_what_prepares_a_training_asks_for_as_many_gpus_wherever_that_is():
    assert gpus_of(with_training(host="gpu2"), {}) == 8
    assert gpus_of(with_training(launcher=Slurm()), {}) == 8


def test_work_that_is_done_on_another_host_asks_for_no_gpu_of_the_runs():
    made = pipeline("dflash-8gpu")
    away = [replace(s, host="gpu2") if s.kind.name in ("train", "prewarm") else s for s in made.steps]
    assert gpus_of(replace(made, steps=tuple(away)), {}) == 1


def test_to_prepare_a_training_on_several_hosts_asks_for_as_many_as_the_largest_of_them_has_workers(here: Host):
    assert gpus_of(with_training(launcher=Slurm(nodes=2)), {}) == 4
    hosts = {name: replace(here, name=name, gpus=gpus) for name, gpus in (("gpu2", 6), ("gpu3", 2))}
    assert gpus_of(with_training(launcher=Torchrun(("gpu2", "gpu3"))), hosts) == 6, "five targets and the first drafter"


def test_a_machine_without_gpus_is_fit_for_a_pipeline_that_needs_none(here: Host):
    require_fit(here, pipeline("local"), {})


def test_it_is_not_for_one_that_does_and_the_layer_is_named(here: Host):
    with pytest.raises(EnvironmentMismatch, match=r"^here, host: .*driver.*\./inv check --host here shows the whole$"):
        require_fit(here, pipeline("dflash-8gpu"), {})
