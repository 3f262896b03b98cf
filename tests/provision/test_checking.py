"""A host is looked at for real: this machine, and what can be had on it. A stand-in speaks for its GPUs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dflash.finding import Finding
from dflash.hosts.chain import parse_chain
from dflash.hosts.failures import Unreachable
from dflash.hosts.inventory import Host
from dflash.provision.checking import Checked, check_host, fix_host
from dflash.provision.checks.fixes import FIXES, fixes_of
from dflash.provision.fact import Fact, read
from dflash.provision.facts.gpus import GPUS
from dflash.provision.look import opened
from dflash.provision.operations.persistence import PersistenceMode
from dflash.provision.operations.uvm import UvmDevice

SMI = """#!/bin/sh
# Two GPUs in the shapes of nvidia-smi; whether they are in persistence mode is in a file.
mode=$(cat "$0.mode")
case $1 in
--query-gpu=index,persistence_mode) printf '%s, %s\\n' 0 "$mode" 1 "$mode" ;;
-pm) echo Enabled >"$0.mode" ;;
*) exit 9 ;;
esac
"""
ASLEEP = Finding("warn", "persistence", "off on GPU 0, 1", name="no-persistence", layer="devices")


@pytest.fixture
def here(tmp_path: Path) -> Host:
    return Host("here", parse_chain("local"), root=str(tmp_path))


def test_this_machine_is_checked_layer_by_layer_and_lacks_the_gpus_that_the_inventory_counts(here: Host) -> None:
    found = check_host(replace(here, gpus=2))
    layers = list(dict.fromkeys(each.layer for each in found.findings))
    assert layers[:2] == ["ssh", "host"]
    assert layers[-1] == "environment"
    assert {"system", "clock", "Python", "memory", "disk"} <= {each.subject for each in found.findings}
    assert (found.ok, found.layer) == (False, "host")
    assert [each.name for each in found.findings if each.layer == "host" and each.severity == "block"] == ["no-driver"]
    told = json.loads(json.dumps(found.to_json()))
    assert [Finding(**each) for each in told["findings"]] == list(found.findings)


def test_a_container_that_can_not_be_entered_is_a_finding_beside_those_of_the_host(here: Host) -> None:
    found = check_host(replace(here, chain=parse_chain("local/docker:dflash-nowhere")))
    assert "system" in {each.subject for each in found.findings}
    assert found.layer == "container"
    (wrong,) = [each for each in found.findings if each.severity == "block"]
    assert "docker:dflash-nowhere" in wrong.subject
    assert not [each for each in found.findings if each.layer in ("resources", "cuda", "environment")]


def test_a_host_that_can_not_be_reached_is_an_error(here: Host) -> None:
    with pytest.raises(Unreachable, match="refused"):
        check_host(replace(here, chain=parse_chain("ssh:root@127.0.0.1:9/pct:200")))


def test_environments_in_use_are_compared_and_one_that_is_not_declared_here_is_said(here: Host, tmp_path: Path) -> None:
    for name in ("ghost", "local"):  # neither was made to its end
        (tmp_path / "envs" / name / "0123456789abcdef").mkdir(parents=True)
        (tmp_path / "envs" / name / "current").symlink_to("0123456789abcdef")
    found = check_host(here)
    kinds = [(each.severity, each.subject) for each in found.findings if each.layer == "environment"]
    assert kinds == [("warn", "environment ghost"), ("block", "local: environment")]
    assert found.layer == "environment"


def test_a_program_that_hangs_costs_its_patience_and_no_more(
    here: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with opened(here.chain) as way:
        known = read(way.host, [GPUS, Fact("true", ("true",), lambda output: output.ok)], patience=0.5)
    assert known[GPUS].hung
    assert known[GPUS].error == "it did not end in 0.5 s"


def test_what_can_be_mended_has_an_operation_and_each_is_asked_once() -> None:
    uvm = Finding("block", "/dev/nvidia-uvm", "is not there", name="no-node")
    found = fixes_of(
        [uvm, replace(uvm, name="stale-node"), ASLEEP, replace(ASLEEP, severity="ok"), Finding("warn", "x", "y")]
    )
    assert [each.operation for each in found] == [UvmDevice(), PersistenceMode()]
    assert set(FIXES) == {"no-node", "stale-node", "no-persistence"}


@pytest.mark.parametrize("node", ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm-tools"])
def test_only_the_node_that_an_operation_makes_is_called_mendable(node: str) -> None:
    assert fixes_of([Finding("block", node, "is not there", name=name) for name in ("no-node", "stale-node")]) == []


def test_a_fault_is_mended_with_its_change_shown_first_and_the_host_checked_again(
    here: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    (tmp_path / "nvidia-smi.mode").write_text("Disabled\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    told: list[str] = []
    before = Checked(here, (ASLEEP,), 0.1)
    assert before.to_json()["mendable"] == ["persistence"]
    after = fix_host(before, told.append)
    assert (tmp_path / "nvidia-smi.mode").read_text() == "Enabled\n"
    assert told.index("-GPU 0 off") < told.index("+GPU 0 on") < told.index("local persistence: nvidia-smi -pm 1")
    assert "no-persistence" not in {each.name for each in after.findings}


def test_what_can_not_be_mended_is_said_and_the_check_goes_on(here: Host) -> None:
    told: list[str] = []
    after = fix_host(Checked(here, (ASLEEP,), 0.1), told.append)
    assert told[-1] == "not mended: local persistence: persistence can not be told: there is no nvidia-smi; " + (
        "install the NVIDIA driver there, or mend it"
    )
    assert after.findings
    assert fix_host(after, told.append) is after
    assert told[-1] == "here: nothing that was found can be mended by itself"
