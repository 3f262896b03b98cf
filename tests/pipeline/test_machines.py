"""The hosts that a pipeline names reach the step that needs them, as the machine of the run reaches them."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace

import pytest

from dflash.errors import UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.pipeline import machines
from dflash.pipeline.far import planned
from dflash.pipeline.keys import observe
from dflash.pipeline.kinds import StepInputs, StepKind
from dflash.pipeline.launchers import config as launchers
from dflash.pipeline.launchers.config import Slurm, Threads, Torchrun, refuse_threads
from dflash.pipeline.machines import machines_of
from dflash.pipeline.plan import make_plan
from dflash.pipeline.run import execute
from dflash.pipeline.schema import Pipeline, load_pipeline
from dflash.pipeline.store import Store
from dflash.pipeline.view import Lines
from dflash.training.config import Topology, TrainConfig
from tests.pipeline.lab import Lab

INVENTORY = """\
gpu1: {chain: "ssh:root@gpu1", root: /data/dflash, gpus: 8}
gpu2: {chain: "ssh:root@gpu2/pct:200", gpus: 4}
"""


@dataclass(frozen=True)
class Nothing:
    """A step that has nothing to choose."""


def _tell(step: StepInputs) -> dict:
    return {"launcher": launchers.to_json(step.launcher), "hosts": machines.to_json(step.hosts)}


KINDS = {"tell": StepKind("tell", Nothing, _tell)}


@pytest.fixture
def lab_with_hosts(lab: Lab) -> Lab:
    lab.file.write_text("name: p\nsteps:\n  - {name: tell, uses: tell}\n")
    (lab.root / "hosts.yaml").write_text(INVENTORY)
    return lab


def with_launcher(lab: Lab, *names: str) -> Pipeline:
    loaded = load_pipeline(lab.file, KINDS)
    return replace(loaded, steps=(replace(loaded.steps[0], launcher=Torchrun(names, 7)),))


def test_a_host_that_is_the_runs_own_machine_is_local_to_it(lab_with_hosts: Lab):
    pipeline, inventory = with_launcher(lab_with_hosts, "gpu1", "gpu2"), lab_with_hosts.root / "hosts.yaml"
    found = machines_of(pipeline, Host("gpu1", parse_chain("ssh:root@gpu1"), "/data/dflash"), inventory)
    assert found["gpu1"] == Host("gpu1", parse_chain("local"), "/data/dflash", 8)
    assert found["gpu2"] == Host("gpu2", parse_chain("ssh:root@gpu2/pct:200"), None, 4)
    assert machines.from_json(json.loads(json.dumps(machines.to_json(found)))) == found
    with pytest.raises(UsageError, match=r"there is no host 'gpu3'"):
        machines_of(with_launcher(lab_with_hosts, "gpu3"), found["gpu1"], inventory)


def test_a_step_is_given_its_launcher_and_the_hosts_here_and_on_another_machine(lab_with_hosts: Lab):
    lab = lab_with_hosts
    pipeline, here = with_launcher(lab, "gpu2"), Host("local", parse_chain("local"))
    hosts = machines_of(pipeline, here, lab.root / "hosts.yaml")
    plan = make_plan(pipeline, here, observe(pipeline), Store(lab.root), hosts)
    outcome = execute(plan, lab.root, Lines(io.StringIO()), "tests.pipeline.test_machines:KINDS")
    told = outcome.record["steps"][0]["result"]
    assert told["launcher"] == {"kind": "torchrun", "hosts": ["gpu2"], "port": 7, "address": ""}
    assert told["hosts"] == machines.to_json(hosts)
    request = {
        "pipeline": {"name": "p.yaml", "text": lab.file.read_text()},
        "overrides": [],
        "host": {"name": "gpu1", "gpus": 8},
        "kinds": "tests.pipeline.test_machines:KINDS",
        "hosts": machines.to_json(hosts),
    }
    assert planned(request, lab.root, lab.root).hosts == hosts


@pytest.mark.parametrize("launcher", [None, Threads(), Torchrun(("a", "b"), 3, "10.0.0.1"), Slurm(2, "gpu", ("-A x",))])
def test_a_launcher_travels_as_plain_values(launcher: object):
    assert launchers.from_json(json.loads(json.dumps(launchers.to_json(launcher)))) == launcher


def test_threads_can_not_spread_a_target():
    refuse_threads(TrainConfig())
    with pytest.raises(UsageError, match=r"target_gpus: a target that is spread .*; give the step launcher: torchrun"):
        refuse_threads(TrainConfig(topology=Topology(1, 1, target_gpus=2)))
