from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from dflash.environments import EnvironmentSpec
from dflash.errors import EnvironmentMismatch
from dflash.finding import Finding
from dflash.progress import Silent
from dflash.provision.check import check, require
from dflash.provision.checks.here import CheckConfig, judge
from dflash.provision.facts import here as facts
from dflash.provision.table import findings_of, print_table

GIB = 2**30
SPEC = EnvironmentSpec(name="x", python=">=3.11,<3.14", torch="2.13.0+cpu", torch_backend="cpu")
COMPILER = facts.CompilerFact("g++", "/usr/bin/g++", "12.2.0", seconds=0.5)
GOOD = facts.Facts(
    python=facts.PythonFact("3.12.4", "/usr/bin/python3"),
    platform=facts.PlatformFact("Linux", "x86_64", "glibc 2.36"),
    torch=facts.TorchFact("2.13.0+cpu", None, 1.5),
    compiler=COMPILER,
    disk=facts.DiskFact("/data", 10 * GIB),
    memory=facts.MemoryFact(8 * GIB),
    cpus=2.0,
    shm=facts.DiskFact("/dev/shm", GIB),
)


def test_a_good_machine_has_one_finding_a_fact_and_none_is_wrong() -> None:
    findings = judge(GOOD, CheckConfig(), SPEC)
    assert [each.severity for each in findings] == ["ok"] * 8


@pytest.mark.parametrize(
    ("change", "severity", "found", "cure"),
    [
        ({"python": facts.PythonFact("3.10.1", "p")}, "block", "not in the range >=3.11,<3.14", "PYTHON="),
        ({"platform": facts.PlatformFact("Darwin", "arm64", "")}, "block", "Darwin arm64", "Linux"),
        (
            {"torch": facts.TorchFact(error="no module")},
            "block",
            "can not be imported: no module",
            "rm -r .venv",
        ),
        (
            {"torch": facts.TorchFact("2.13.0+cu130", "13.0")},
            "block",
            "2.13.0+cu130; env.yaml",
            "rm -r .venv",
        ),
        ({"torch": facts.TorchFact("2.13.0+cpu", "13.0")}, "block", "built for CUDA 13.0", "rm -r .venv"),
        ({"compiler": facts.CompilerFact("g++")}, "block", "g++ is not there", "apt-get install g++"),
        (
            {"compiler": facts.CompilerFact("g++", alternative="clang++")},
            "block",
            "clang++ is",
            "CXX=clang++ ./inv",
        ),
        ({"compiler": replace(COMPILER, error="no Python.h")}, "block", "no Python.h", "python3-dev"),
        ({"compiler": replace(COMPILER, error="no -lgomp")}, "block", "no -lgomp", "OpenMP"),
        ({"compiler": replace(COMPILER, error="noexec")}, "block", "noexec", "load"),
        ({"disk": facts.DiskFact("/d", GIB)}, "block", "1.0 GiB free in /d; 3 are needed", "free 2.0 GiB"),
        (
            {"disk": facts.DiskFact("/d", error="Read-only")},
            "block",
            "can not be written: Read-only",
            "--root",
        ),
        (
            {"memory": facts.MemoryFact(GIB)},
            "block",
            "1.0 GiB available; 4 are needed",
            "stop other programs",
        ),
        ({"memory": facts.MemoryFact(GIB, 2 * GIB)}, "block", "cgroup limit of 2.0 GiB", "container's limit"),
        ({"memory": facts.MemoryFact(5 * GIB, 6 * GIB)}, "ok", "cgroup limit of 6.0 GiB", ""),
        ({"cpus": 0.5}, "block", "0.5; 1 are needed", "quota"),
        ({"shm": facts.DiskFact("/dev/shm", 2**20)}, "warn", "1 MiB free", "--shm-size"),
        ({"shm": facts.DiskFact("/dev/shm", error="absent")}, "warn", "absent", "tmpfs"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(change: dict[str, object], severity: str, found: str, cure: str) -> None:
    findings = judge(replace(GOOD, **change), CheckConfig(), SPEC)  # type: ignore[arg-type]
    plain = judge(GOOD, CheckConfig(), SPEC)
    (different,) = [each for each in findings if each not in plain]
    assert different.severity == severity
    assert found in different.found
    assert cure in different.cure


def test_thresholds_come_from_the_configuration() -> None:
    config = CheckConfig(min_disk_gib=11, min_memory_gib=9, min_cpus=4)
    wrong = {each.subject for each in judge(GOOD, config, SPEC) if each.severity == "block"}
    assert wrong == {"disk", "memory", "CPUs"}
    assert not [each for each in judge(replace(GOOD, compiler=None), config, SPEC) if "C++" in each.subject]


def test_require_names_the_blocking_findings_in_one_line() -> None:
    findings = [Finding("block", "disk", "full", "free some"), Finding("warn", "shm", "small")]
    with pytest.raises(EnvironmentMismatch) as caught:
        require({"findings": [each.to_json() for each in findings], "ok": False})
    assert str(caught.value) == "environment: disk: full; free some"
    many = [Finding("block", f"s{index}", "bad", f"cure {index}") for index in range(5)]
    with pytest.raises(EnvironmentMismatch, match=r"s2: bad; and 2 more; `\./inv check`"):
        require({"findings": [each.to_json() for each in many], "ok": False})
    require({"findings": [findings[1].to_json()], "ok": True})


def test_the_table_is_worst_first_and_takes_brackets_as_text() -> None:
    out = io.StringIO()
    findings = [Finding("ok", "a", "fine"), Finding("block", "b", "in [red]/x[/red]", "do [this]")]
    print_table(findings, Console(file=out, width=100))
    lines = out.getvalue().splitlines()
    assert lines[1].split()[:2] == ["WRONG", "b"]
    assert "[red]/x[/red]" in lines[1]
    assert "do [this]" in lines[1]
    assert lines[-1] == "2 checks: 1 wrong"


def test_this_machine_is_checked_for_real_and_the_result_is_plain_json(tmp_path: Path) -> None:
    result = check(CheckConfig(min_disk_gib=0.1, min_memory_gib=0.1), tmp_path, Silent())
    assert json.loads(json.dumps(result)) == result
    shown = {each.subject: each for each in findings_of(result)}
    assert shown["C++ compiler"].severity == "ok"
    assert shown["torch"].severity == "ok"
    assert result["ok"] == all(each.severity != "block" for each in shown.values())
    assert list(tmp_path.iterdir()) == []
