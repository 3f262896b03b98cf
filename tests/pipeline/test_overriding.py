"""What `--set` changes of a pipeline, and what is said where it can not."""

from __future__ import annotations

import pytest

from dflash.errors import ConfigError, UsageError
from dflash.pipeline.launchers.config import Torchrun
from tests.pipeline.lab import Lab


def test_set_changes_a_steps_configuration(lab: Lab):
    config = lab.load("train.steps=7", "train.optimizer.lr=1e-4", "train.devices=[cuda:0]").step("train").config
    assert (config.steps, config.optimizer.lr, config.devices) == (7, 1e-4, ("cuda:0",))
    assert config.optimizer.betas == (0.9, 0.95)
    assert lab.load("evaluate.prompts=9").step("evaluate").config.prompts == 9


def test_set_with_a_colon_changes_what_a_step_declares_itself(lab: Lab):
    step = lab.load("train:timeout=2h", "train:env.NAME=x", "train:retry=2", "train:launcher=torchrun").step("train")
    assert (step.limits.timeout_s, step.env, step.retry.attempts) == (7200.0, {"NAME": "x"}, 2)
    assert step.launcher == Torchrun()
    assert step.config.steps == 5


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train:timeout=20 min", "'20 min' is no duration"),
        ("train:timout=20m", "unknown key 'timout'; did you mean 'timeout'?"),
        ("trian:timeout=20m", "the pipeline has no step 'trian'; did you mean 'train'?"),
        ("train:=3", "this is not step.key=value; try --set train.steps=100, or --set train:timeout=2h"),
        ("train:when=hots.gpus", "did you mean 'host'?"),
        ("train:needs.x=3", "'train.needs' is not a map, so nothing in it can be set"),
        ("train.steps", "this is not step.key=value"),
        ("steps=3", "this is not step.key=value"),
        ("trian.steps=3", "the pipeline has no step 'trian'; did you mean 'train'?"),
        ("train.stps=3", "unknown key 'stps'; did you mean 'steps'?"),
        ("train.steps=many", 'must be a valid integer, not "many"'),
        ("train.steps=", "must be a valid integer, not null"),
        ("train.steps=0", "steps must be at least 1"),
        ("train.steps.x=0", "'train.steps' is not a map"),
        ("train.devices=[a", "the value can not be read"),
        ("train.steps=1e999", "the value can not be read"),
        ("prewarm.for_step=trian", "did you mean 'train'?"),
    ],
)
def test_a_wrong_set_is_named(lab: Lab, override: str, says: str):
    with pytest.raises(UsageError) as caught:
        lab.load(override)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"--set {override}: ")


def test_a_fault_of_the_file_is_not_blamed_on_an_option(lab: Lab):
    lab.file.write_text(lab.file.read_text().replace("steps: 5", "steps: 0"))
    with pytest.raises(ConfigError) as caught:
        lab.load("train.optimizer.lr=1e-4")
    assert "steps must be at least 1" in str(caught.value)
    with pytest.raises(UsageError) as caught:
        lab.load("train.steps=5", "train.gpus=x")
    assert str(caught.value) == '--set train.gpus=x: must be a valid integer, not "x"; a number has no quotes'
