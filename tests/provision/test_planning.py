"""Which operations a declaration comes to, where, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from dflash.errors import UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.provision.container import ContainerSpec
from dflash.provision.declaration import MachineSpec, MountSpec, PartSpec
from dflash.provision.fact import HUNG, Facts, Output
from dflash.provision.facts.users import Login, groups_of, parse_login
from dflash.provision.operation import Change
from dflash.provision.operations.user import User
from dflash.provision.planning import Named, Refused, stages
from dflash.provision.planning import planned as planned_steps

ROOT, OPS = Login(0, "root", "/root"), Login(1000, "ops", "/home/ops")
WHOLE: dict[str, Any] = {
    "packages": ["g++"],
    "limits": {"memlock": "unlimited"},
    "mounts": {"/data": MountSpec(source="/dev/sdb")},
    "directories": ["/data/models"],
}


def host(chain: str, **more: Any) -> Host:
    return Host("gpu1", parse_chain(chain), **more)


def planned(chain: str, spec: MachineSpec, login: Login = ROOT, only: tuple[str, ...] = (), **more: Any) -> Any:
    """Of each stage, its chain and its operations' names."""
    found = stages(host(chain, **more), spec, only)
    return [(str(stage.chain), [each.name for each in stage.operations(login)]) for stage in found]


def operations(chain: str, spec: MachineSpec, login: Login) -> dict[str, Named]:
    return {each.subject: each for stage in stages(host(chain), spec) for each in stage.operations(login)}


@pytest.mark.parametrize("output", [Output(HUNG), Output(127), Output(0, "\n"), Output(0, "\n\n\n")])
def test_who_logs_in_may_not_be_known(output: Output):
    assert parse_login(output) is None


def test_without_a_container_all_is_one_machines_and_disks_come_before_what_lies_on_them():
    spec = MachineSpec(**WHOLE, user="trainer", persistence=True)
    names = ["packages", "user", "python", "persistence", "uvm", "limits", "mounts"]
    assert planned("ssh:gpu1", spec, gpus=8) == [("ssh:gpu1", [*names, *["directories"] * 3, "uv"])]


def test_the_machine_before_a_container_has_the_driver_and_makes_the_container():
    spec = MachineSpec(
        packages=["g++"], persistence=True, host=PartSpec(**WHOLE), container=ContainerSpec("debian", gpus="all")
    )
    before = ["packages", "persistence", "uvm", "limits", "mounts", "directories", "container"]
    behind = ["packages", "python", "driver", "directories", "directories", "uv"]
    assert planned("ssh:gpu1/sudo/pct:200", spec, gpus=8) == [
        ("ssh:gpu1/sudo", before),
        ("ssh:gpu1/sudo/pct:200", behind),
    ]


def test_what_only_names_is_all_that_is_left_of_each_machine():
    spec = MachineSpec(packages=["g++"], host=PartSpec(packages=["lxc"], directories=["/srv"]))
    assert planned("ssh:gpu1/lxc:box", spec, only=("packages", "uv")) == [
        ("ssh:gpu1", ["packages"]),
        ("ssh:gpu1/lxc:box", ["packages", "uv"]),
    ]


def test_directories_are_the_declared_users_or_else_of_who_logs_in():
    def owner(spec: MachineSpec, login: Login) -> str:
        return operations("ssh:gpu1", spec, login)["directory /srv"].operation.owner

    assert owner(MachineSpec(directories=["/srv"]), ROOT) == ""
    assert owner(MachineSpec(directories=["/srv"]), OPS) == "ops"
    assert owner(MachineSpec(directories=["/srv"], user="trainer"), OPS) == "trainer"


def test_the_default_root_is_in_the_home_of_who_logs_in():
    assert "directory /home/ops/.dflash" in operations("ssh:gpu1", MachineSpec(), OPS)


def test_here_environments_are_made_with_our_own_uv():
    assert planned("local", MachineSpec()) == [("local", ["python", "directories", "directories"])]


@pytest.mark.parametrize(
    ("chain", "cure"),
    [
        ("ssh:gpu1/pct:200", "declare them under `host`"),
        ("lxd:box", "limits.kernel.memlock"),
        ("ssh:gpu1/docker:box", "default-ulimits"),
    ],
)
def test_limits_are_refused_where_nobody_logs_in(chain: str, cure: str):
    spec = MachineSpec(limits={"memlock": "unlimited"})
    with pytest.raises(UsageError, match=f"entered without one; .*{cure}"):
        stages(host(chain), spec)
    assert stages(host(f"{chain}/sudo:ops"), spec)
    assert stages(host(chain), MachineSpec(host=PartSpec(**WHOLE)))


@pytest.mark.parametrize("status", [HUNG, 0])
def test_what_does_not_answer_is_not_absent(status: int):
    user = Named("user", User("trainer", ("video",)), "user trainer")
    facts = Facts({fact: Output(2) for fact in user.operation.facts()} | {groups_of(("video",)): Output(status)})
    (step,) = planned_steps([user], facts)
    assert isinstance(step.outcome, Refused if status else Change)
    assert not status or "the command for 'groups video' does not end" in str(step.outcome.error)


@pytest.mark.parametrize("spec", [MachineSpec(container=ContainerSpec("debian")), MachineSpec(host=PartSpec(user="x"))])
def test_a_container_that_the_chain_does_not_have_can_not_be_declared(spec: MachineSpec):
    with pytest.raises(UsageError, match=r"gpu1 \(ssh:gpu1\): `host` and `container` are of a chain with a container"):
        stages(host("ssh:gpu1"), spec)
