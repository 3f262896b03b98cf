"""`./inv split`: from a pipeline alone to the settings of the split that its training should use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dflash import cli
from dflash.cli_prewarm import request_of
from dflash.cli_split import advice, measure_host, settings, split, table
from dflash.errors import UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.training.config import Topology
from dflash.training.costs import Figures, costs, proposal
from tests.test_cli_prewarm import inv
from tests.test_cli_prewarm import settings as small

RECORDED = json.loads((Path(__file__).parent / "data" / "costs-27b.json").read_text())
FIVE_AND_THREE = "--set train.topology.targets=5 --set train.topology.drafters=3"


@pytest.fixture
def figures() -> Figures:
    return Figures(**RECORDED["figures"])


def test_a_27b_target_gets_five_of_eight_gpus_and_colocated_is_named_where_it_is_faster(figures: Figures):
    found = costs(figures, 8)
    lines = advice(found, proposal(found))
    assert lines[0] == FIVE_AND_THREE
    assert all("Colocated would be" in line and line.endswith(settings(Topology(0, 8))) for line in lines[1:])


def test_every_split_has_a_line_with_its_memory(figures: Figures):
    measured, heading, *rows = table(figures, costs(figures, 8))
    assert measured.startswith("A micro-batch of 6144 tokens takes a target ")
    assert heading.split()[-1] == "memory"
    assert {row[:11].strip() for row in rows} == {"8 colocated", *(f"{n} + {8 - n}" for n in range(1, 8))}
    assert all(" GiB" in row for row in rows)


def test_what_does_not_fit_is_said_and_not_advised(figures: Figures):
    small_gpu = replace(figures, memory_bytes=80 * 2**30)
    found = costs(small_gpu, 8)
    (together,) = [row for row in table(small_gpu, found) if "colocated" in row]
    assert together.endswith("of 80.0 GiB, does not fit")
    assert advice(found, proposal(found)) == [FIVE_AND_THREE]


@pytest.mark.nightly
def test_the_roles_of_a_pipeline_are_measured_and_the_settings_printed(tmp_path: Path):
    done = inv("split", *small("train.compile=false"), "--workers", "4", root=tmp_path)
    assert done.returncode == 0, done.stderr
    *rows, remark, chosen = done.stdout.partition("Colocated would be")[0].splitlines()
    assert len(rows) == 2 + 4
    assert remark == "On a CPU workers share the processors: this is as if each had one to itself."
    assert chosen.startswith("--set train.topology.targets=")
    assert "local: measuring a drafter" in done.stderr


@pytest.mark.nightly
def test_compiled_workers_are_measured_in_front_of_the_sealed_gate(tmp_path: Path):
    done = inv("split", *small(), "--json", root=tmp_path, limit=280)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["figures"]["target_s"] > 0
    assert len(said["costs"]) == 8
    assert Topology(**said["proposal"]).size == 8
    assert any((tmp_path / "measuring" / "inductor").iterdir())


@pytest.mark.nightly
def test_a_target_that_is_not_there_is_said_with_its_host(tmp_path: Path):
    request = request_of(cli.load("pipelines/dflash-8gpu.yaml", [f"target.folder={tmp_path}/nowhere"]))
    host = Host("local", parse_chain("local"), root=str(tmp_path))
    with reach(host.chain) as connection, pytest.raises(UsageError, match="nowhere: not a model folder"):
        measure_host(connection, host, "", {**request, "link": 1e9})


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--workers", "-1"], "error: --workers: is a number of workers, not -1; give at least 1"),
        (["--link", "0"], "error: --link: is in gigabytes a second, not 0; leave it out"),
    ],
)
def test_numbers_that_can_not_be_are_refused_before_anything_is_measured(
    tmp_path: Path, words: list[str], complaint: str
):
    done = inv("split", *words, root=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (2, complaint)


def test_a_target_that_is_spread_over_gpus_is_not_measured_on_one():
    spread = ["train.topology.target_gpus=2", "train:launcher=torchrun"]
    words = {"host": "local", "environment": "local", "root": "", "workers": 0, "link": 300.0, "as_json": False}
    with pytest.raises(UsageError, match=r"train\.topology\.target_gpus: a target that is spread over GPUs can not be"):
        split(pipeline="pipelines/local.yaml", overrides=spread, **words)
