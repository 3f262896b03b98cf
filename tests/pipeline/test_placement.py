"""How a training says where its workers are, and what can not be there."""

from __future__ import annotations

import pytest

from dflash.errors import ConfigError, UsageError
from dflash.pipeline.kinds import load_kinds
from dflash.pipeline.launchers.config import Slurm, Threads, Torchrun
from dflash.pipeline.schema import load_pipeline
from tests.pipeline.lab import Lab

TARGET = "  - {name: target, uses: target}\n"
TRAIN = "  - name: train\n    uses: train\n    needs: [target]\n"


def trained(keys: str) -> str:
    """A pipeline whose training declares these keys, from line 7 on."""
    return f"name: x\nsteps:\n{TARGET}{TRAIN}    {keys}\n"


@pytest.mark.parametrize(
    ("keys", "place", "says"),
    [
        ("launcher: torchrnu", "7:15", "there is no launcher 'torchrnu'; did you mean 'torchrun'?"),
        ("launcher: {hosts: [a]}", "7:15", "say its kind; known launchers: slurm, threads, torchrun"),
        ("launcher: {kind: torchrun, host: [a]}", "7:32", "unknown key 'host'; did you mean 'hosts'?"),
        ("launcher: {kind: torchrun, hosts: [a b]}", "7:40", "'a b' names no host"),
        ("launcher: {kind: torchrun, hosts: [a, b, a]}", "7:46", "'a' is named twice; remove one"),
        ("launcher: {kind: torchrun, hosts: [a], port: 0}", "7:50", "port is from 1 to 65535, not 0"),
        (
            "host: a\n    launcher: {kind: torchrun, hosts: [b]}",
            "7:5",
            "its launcher names hosts, too; remove its host",
        ),
        ("launcher: slurm\n    secrets: [A]", "8:5", "a step in a Slurm job, whose variables Slurm writes to files,"),
        ("launcher: {kind: torchrun, hosts: [a]}\n    secrets: [A]", "8:5", "a step elsewhere is given no secrets"),
        ("with: {launcher: processes}", "7:12", "the launcher is the step's own; write launcher: torchrun (or"),
        ("launcher: {kind: slurm, nodes: two}", "7:36", 'must be a valid integer, not "two"'),
        ("when: steps.trget.status == 'ok'", "7:11", "there is no step 'trget'; did you mean 'target'?"),
    ],
)
def test_a_mistake_in_what_a_training_declares_is_named_with_its_place(lab: Lab, keys: str, place: str, says: str):
    lab.file.write_text(trained(keys))
    with pytest.raises(ConfigError) as caught:
        lab.load()
    assert str(caught.value).startswith(f"{lab.file}:{place}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("launcher", "is_read_as"),
    [
        ("threads", Threads()),
        ("torchrun", Torchrun()),
        ("{kind: torchrun, hosts: [gpu1, 'ssh:gpu2'], port: 29401}", Torchrun(("gpu1", "ssh:gpu2"), 29401)),
        ("{kind: slurm, nodes: 2}", Slurm(nodes=2)),
    ],
)
def test_a_training_says_how_its_workers_are_started(lab: Lab, launcher: str, is_read_as: object):
    lab.file.write_text(trained(f"launcher: {launcher}"))
    assert lab.load().step("train").launcher == is_read_as


SPREAD = """\
name: p
steps:
  - {name: target, uses: target}
  - {name: data, uses: data, needs: [target]}
  - {name: prewarm, uses: prewarm, needs: [target, data], with: {for_step: train}}
  - name: train
    uses: train
    needs: [target, data, prewarm]
    launcher: threads
    with:
      topology: {targets: 3, drafters: 2, target_gpus: 2}
"""


def test_workers_that_can_not_be_shared_out_so_are_refused_when_the_file_is_read(lab: Lab):
    def said(launcher: str, *overrides: str) -> str:
        lab.file.write_text(SPREAD.replace("launcher: threads", f"launcher: {launcher}"))
        with pytest.raises(UsageError) as caught:
            load_pipeline(lab.file, load_kinds(), overrides)
        return str(caught.value)

    spread = "a target that is spread over GPUs is one of processes; give the step launcher: torchrun"
    assert said("threads") == f"{lab.file}:11:56: {spread}"
    assert said("null", "train.topology.target_gpus=3") == f"--set train.topology.target_gpus=3: {spread}"
    assert said("{kind: slurm, nodes: 3}").startswith(f"{lab.file}:9:36: 8 workers can not be shared out evenly over 3")
    lab.file.write_text(SPREAD.replace("threads", "{kind: slurm, nodes: 2}"))
    load_pipeline(lab.file, load_kinds())
