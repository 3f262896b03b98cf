"""Two environments side by side: worst first, each difference with what it means."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dflash.environments.diff import Description, compare, of_reading
from dflash.environments.remote import HostEnvironments
from dflash.environments.spec import read_spec

REPOSITORY = Path(__file__).parents[2]


def verdicts(a: dict[str, str], b: dict[str, str]) -> list[tuple[str, str]]:
    return [(each.field, each.verdict) for each in compare(Description("a", a), Description("b", b))]


def test_what_blocks_comes_first_and_what_is_the_same_last():
    a = {
        "package rich": "14",
        "package torch": "2.11.0",
        "package numpy": "2.3.0",
        "python": "3.11.7",
        "driver": "580.65.06",
    }
    b = {
        "package rich": "15",
        "package torch": "2.12.0",
        "package numpy": "2.3.0",
        "python": "3.11.9",
        "driver": "580.95.05",
    }
    assert verdicts(a, b) == [
        ("package torch", "blocking"),
        ("driver", "tolerable"),
        ("package rich", "tolerable"),
        ("python", "tolerable"),
        ("package numpy", "same"),
    ]


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ({"python": "3.11.7"}, {"python": ">=3.11,<3.13"}, "same"),
        ({"python": "3.12.1"}, {"python": "3.11.7"}, "blocking"),
        ({"machine": "x86_64"}, {"machine": "aarch64"}, "blocking"),
        ({"cuda": "12.8"}, {"cuda": "13.0"}, "blocking"),
        ({"library libnccl.so.2": "aa"}, {"library libnccl.so.2": "bb"}, "blocking"),
        ({"package nvidia-nccl-cu13": "2.28.9", "package a": "1"}, {"package a": "1"}, "blocking"),
        ({"package tqdm": "4", "package a": "1"}, {"package a": "1"}, "tolerable"),
        ({"variable LD_LIBRARY_PATH": "/x"}, {}, "tolerable"),
        ({"lock": "aa"}, {"lock": "bb"}, "tolerable"),
    ],
)
def test_a_difference_is_judged_by_what_it_can_do(a: dict[str, str], b: dict[str, str], verdict: str):
    assert verdicts(a, b)[0][1] == verdict


def test_every_difference_says_why_and_reads_the_same_from_both_sides():
    a, b = (
        {"package torch": "1", "package x": "1", "cuda": "12.8"},
        {"package torch": "2", "package x": "2", "cuda": "13.0"},
    )
    for each in compare(Description("a", a), Description("b", b)):
        assert each.why
    assert verdicts(a, b) == verdicts(b, a)


def test_fields_that_one_kind_of_side_never_has_are_left_out():
    assert verdicts({"driver": "580", "package a": "1"}, {"package a": "1"}) == [("package a", "same")]


def test_a_generation_is_described_by_its_packages_and_the_hashes_of_cudas_libraries(
    environments: HostEnvironments, folder: Path, wheels: Path
):
    environments.create(folder, wheels=wheels)
    (row,) = environments.listed()
    found = of_reading("here", read_spec(folder / "env.yaml"), environments.read(row["path"]))
    assert found.fields["package torch"] == "2.11.0"
    assert found.fields["python"] == row["python"]
    assert len(found.fields["library libnccl.so.2"]) == 16
    assert all(each.verdict == "same" for each in compare(found, found))


def inv(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-m", "dflash", *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)


def test_the_verb_compares_two_declarations():
    done = inv("env.diff", "train-cu128", "train-cu130", "--json")
    assert done.returncode == 3
    found = {each["field"]: each for each in json.loads(done.stdout)["differences"]}
    assert (found["package torch"]["a"], found["package torch"]["b"]) == ("2.11.0+cu128", "2.11.0")
    assert found["cuda"]["verdict"] == "blocking"
    assert found["package transformers"]["verdict"] == "same"
    same = inv("env.diff", "train-cu130", "train-cu130")
    assert same.returncode == 0


def test_this_environment_is_as_it_is_declared():
    done = inv("env.diff", "local", "local@local", "--json")
    assert [each for each in json.loads(done.stdout)["differences"] if each["verdict"] == "blocking"] == []
    assert done.returncode == 0


def test_what_is_nothing_of_the_kind_is_one_line():
    done = inv("env.diff", "train-cu13", "train-cu130")
    assert done.returncode == 2
    assert done.stderr == (
        "error: 'train-cu13' is no environment, no NAME@HOST and no run; did you mean 'train-cu130'?\n"
    )
