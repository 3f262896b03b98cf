"""The hosts that a pipeline names reach the step that needs them, as the machine of the run reaches them."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dflash.errors import EnvironmentMismatch, UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.pipeline import machines
from dflash.pipeline.far import planned
from dflash.pipeline.keys import observe
from dflash.pipeline.kinds import DEFAULT_KINDS, StepInputs, StepKind, load_kinds
from dflash.pipeline.launchers import config as launchers
from dflash.pipeline.launchers.config import Slurm, Threads, Torchrun, refuse_threads
from dflash.pipeline.machines import machines_of, require_gpus
from dflash.pipeline.plan import make_plan
from dflash.pipeline.run import execute
from dflash.pipeline.schema import Pipeline, load_pipeline
from dflash.pipeline.spec import spec_of
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


def test_a_machine_that_is_local_is_that_of_the_run_or_another_root_on_it_or_not_to_be_reached(lab_with_hosts: Lab):
    inventory = lab_with_hosts.root / "hosts.yaml"
    inventory.write_text(INVENTORY + "desk: {chain: local, root: /data/desk}\n")
    found = machines_of(with_launcher(lab_with_hosts, "desk", "local"), Host("local", parse_chain("local")), inventory)
    assert [machines.is_here(found[name], lab_with_hosts.root) for name in ("desk", "local")] == [False, True]
    gpu1 = Host("gpu1", parse_chain("ssh:root@gpu1"), "/data/dflash")
    for name in ("desk", "local"):
        with pytest.raises(UsageError, match=rf"{name} is this machine, and the run is on gpu1; name a host"):
            machines_of(with_launcher(lab_with_hosts, name), gpu1, inventory)


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ("host: gpu3", "3:37"),
        ("launcher: {kind: torchrun, hosts: [gpu1, gpu3]}", "3:72"),
        ("matrix: {on: [gpu3]}, host: '${{ matrix.on }}'", "3:59"),
    ],
)
def test_a_host_that_is_not_in_the_inventory_is_named_with_its_place(lab_with_hosts: Lab, keys: str, place: str):
    lab = lab_with_hosts
    lab.file.write_text(f"name: p\nsteps:\n  - {{name: work, uses: train, {keys}}}\n")
    pipeline = load_pipeline(lab.file, {"train": replace(KINDS["tell"], name="train", launches=True)})
    with pytest.raises(UsageError) as caught:
        machines_of(pipeline, Host("local", parse_chain("local")), lab.root / "hosts.yaml")
    assert str(caught.value) == f"{lab.file}:{place}: there is no host 'gpu3'; did you mean 'gpu2'?"


def test_hosts_that_have_no_room_for_the_workers_are_told_before_anything_runs(lab_with_hosts: Lab):
    lab, here = lab_with_hosts, Host("local", parse_chain("local"))

    def said(*names: str) -> str:
        pipeline = with_launcher(lab, *names)
        spread = replace(pipeline.steps[0], config=TrainConfig(topology=Topology(7, 6), device="cuda"))
        with pytest.raises(UsageError) as caught:
            machines_of(replace(pipeline, steps=(spread,)), here, lab.root / "hosts.yaml")
        return str(caught.value)

    assert said("gpu1", "gpu2").startswith(
        f"{lab.file}:3:5: step 'tell': 13 workers need as many GPUs, and the hosts have 8 + 4; name more hosts"
    )
    assert said("gpu1", "ssh:gpu9") == (
        f"{lab.file}:3:5: step 'tell': how many GPUs ssh:gpu9 has is not known; give its gpus in hosts.yaml"
    )


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


TRAINING = """\
name: p
steps:
  - {name: target, uses: target}
  - {name: data, uses: data, needs: [target]}
  - {name: prewarm, uses: prewarm, needs: [target, data], with: {for_step: train}}
  - name: train
    uses: train
    needs: [target, data, prewarm]
    with: {device: DEVICE, topology: {targets: 5, drafters: 3}, draft: {block: 8}}
    launcher: LAUNCHER
"""


@pytest.mark.parametrize(
    ("launcher", "counts"),
    [
        ("{kind: torchrun, hosts: [gpu2, gpu1]}", (4, 4)),
        ("{kind: torchrun, hosts: [gpu1, gpu2]}", None),
        ("{kind: slurm, nodes: 2}", (4, 4)),
        ("slurm", None),
        ("torchrun", None),
        ("threads", None),
    ],
)
def test_what_prepares_a_training_on_the_gpus_of_several_hosts_knows_how_many_workers_each_has(
    lab: Lab, launcher: str, counts: tuple[int, ...] | None
):
    """And it is in its key, since it decides what is compiled; where all are on one host, the key is what it was."""
    (lab.root / "hosts.yaml").write_text(INVENTORY)
    here = Host("local", parse_chain("local"))

    def planned_with(launcher: str, device: str = "cuda") -> tuple[dict, dict]:
        lab.file.write_text(TRAINING.replace("LAUNCHER", launcher).replace("DEVICE", device))
        loaded = load_pipeline(lab.file, load_kinds())
        hosts = machines_of(loaded, here, lab.root / "hosts.yaml")
        plan = make_plan(loaded, here, observe(loaded), Store(lab.root), hosts)
        prewarm = next(each for each in plan.steps if each.step.name == "prewarm")
        spec = spec_of(prewarm.step, plan, DEFAULT_KINDS, Store(lab.root), {}, lab.root, lab.root / "log")
        return dict(prewarm.fields), spec

    fields, spec = planned_with(launcher)
    alone, _ = planned_with("threads")
    assert fields == (alone | {"layout": list(counts)} if counts else alone)
    assert spec["layout"] == (counts or ())
    assert "layout" not in planned_with(launcher, device="cpu")[0]


@pytest.mark.parametrize("launcher", [None, Threads(), Torchrun(("a", "b"), 3, "10.0.0.1"), Slurm(2, "gpu", ("-A x",))])
def test_a_launcher_travels_as_plain_values(launcher: object):
    assert launchers.from_json(json.loads(json.dumps(launchers.to_json(launcher)))) == launcher


def test_threads_can_not_spread_a_target():
    refuse_threads(TrainConfig())
    with pytest.raises(UsageError, match=r"target_gpus: a target that is spread .*; give the step launcher: torchrun"):
        refuse_threads(TrainConfig(topology=Topology(1, 1, target_gpus=2)))


def test_a_machine_with_fewer_gpus_than_a_step_uses_is_told_before_anything_runs(tmp_path: Path):
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    require_gpus({"data": 0, "evaluate": 1, "train": 2}, tmp_path)
    said = "^train needs 3 GPUs, prewarm needs 8 GPUs, and this machine has 2; run it on a GPU host that has them"
    with pytest.raises(EnvironmentMismatch, match=said):
        require_gpus({"evaluate": 1, "train": 3, "prewarm": 8}, tmp_path)
    with pytest.raises(EnvironmentMismatch, match=r"^evaluate needs a GPU, and this machine has no .*/nvidia0;"):
        require_gpus({"evaluate": 1}, tmp_path / "none")
