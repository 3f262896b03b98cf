"""`./inv prewarm`: from a pipeline alone to a proved cache in a host's vault, and from there into a training."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dflash import cli
from dflash.cli_prewarm import request_of, warm_host
from dflash.compilation.remote import vault_at
from dflash.compilation.vault import Vault
from dflash.errors import UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from tests.compilation.caches import environment
from tests.hosts.conftest import lab_sshd  # noqa: F401 - a fixture
from tests.lab.sshd import Sshd

REPOSITORY = Path(__file__).parents[1]
SMALL = (
    *("target.steps=5", "target.hidden=64", "target.intermediate=128", "data.prompts=24", "data.response_tokens=40"),
    *("data.buckets=[128]", "train.steps=4", "train.anchors=8", "train.draft.layers=1"),
)


def inv(*words: str, root: Path, limit: int = 60) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-B", "-m", "dflash", *words, "--root", str(root)]
    return subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, timeout=limit, check=False)


def settings(*more: str) -> list[str]:
    return [word for setting in (*SMALL, *more) for word in ("--set", setting)]


@pytest.fixture
def host(lab_sshd: Sshd, tmp_path: Path) -> Host:  # noqa: F811
    environment(tmp_path / "there", "train", DFLASH_VAULT_KEY=str(tmp_path / "key"))
    return Host("gpu1", parse_chain("ssh:lab"), root=str(tmp_path / "there"))


def test_the_set_of_a_pipeline_is_known_from_its_file_alone():
    request = request_of(cli.load("pipelines/dflash-8gpu.yaml"))
    assert request["buckets"] == [1024, 2048, 3072]
    assert request["target"]["folder"] == "/models/Qwen3-8B"
    assert request["train"]["topology"] == {"targets": 5, "drafters": 3, "target_gpus": 1}


@pytest.mark.nightly
def test_without_compilation_nothing_is_warmed(tmp_path: Path):
    done = inv("prewarm", "--set", "train.compile=false", root=tmp_path)
    assert (done.returncode, done.stdout) == (0, "local: compilation is off, there is nothing to warm\n")


def test_a_host_reads_the_targets_folder_and_says_what_is_wrong_with_it_there(host: Host, tmp_path: Path):
    request = request_of(cli.load("pipelines/dflash-8gpu.yaml", [f"target.folder={tmp_path}/nowhere"]))
    with reach(host.chain) as connection, pytest.raises(UsageError, match="not a model folder") as failure:
        warm_host(connection, host, "", request)
    assert failure.value.where == "ssh:lab"
    assert str(tmp_path / "nowhere") in failure.value.what


def test_a_root_for_another_host_is_refused(tmp_path: Path):
    done = inv("prewarm", "--host", "ssh:nobody@127.0.0.1:9", root=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: --root: the root of a host is in hosts.yaml; leave it out\n"


@pytest.mark.nightly
def test_what_one_host_compiled_trains_on_another_without_compiling(host: Host, tmp_path: Path):
    """Pre-warmed through sshd, fetched by cache.get, and used by `train`, of which the live cache is deleted then."""
    request = request_of(cli.load("pipelines/local.yaml", SMALL))
    with reach(host.chain) as connection:
        report = warm_host(connection, host, "", request)
    assert (report["hit_rate"], report["from_vault"], len(report["compiled"])) == (1.0, False, 5)
    here = tmp_path / "here"
    with vault_at(host) as there:
        assert there.get(Vault(here / "vault"), report["snapshot"])
    first = inv("train", "--json", *settings(), root=here, limit=280)
    assert first.returncode == 0, first.stderr
    assert came_from_the_vault(first.stdout) == report["snapshot"]

    (cache,) = here.glob("work/prewarm/*/inductor")
    shutil.rmtree(cache)
    again = inv("train", "--json", *settings("train.steps=6"), root=here, limit=280)
    assert again.returncode == 0, again.stderr
    assert came_from_the_vault(again.stdout) == report["snapshot"]


def came_from_the_vault(record: str) -> str:
    """The snapshot that a run took, having checked that nothing was compiled in it."""
    results = {step["name"]: step["result"] for step in json.loads(record)["steps"]}
    assert results["prewarm"]["from_vault"]
    assert results["prewarm"]["compiled"] == []
    counts = results["train"]["cache"]
    assert counts["graphs"] == counts["autograd_hits"] == 5
    assert (counts["autograd_misses"], counts["inductor_misses"], counts["bypasses"]) == (0, 0, 0)
    return results["prewarm"]["snapshot"]
