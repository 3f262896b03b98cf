"""Pre-warm as a program: what it is asked for, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dflash.training.config import TargetConfig
from dflash.training.far import graph_set
from tests.training.small import CONFIG

REPOSITORY = Path(__file__).parents[2]


def request(train=CONFIG, **target) -> dict:
    return {"train": asdict(train), "target": asdict(TargetConfig(**target)), "buckets": [64, 48], "hosts": []}


def asked(document: dict, root: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-P", "-m", "dflash.training.far", str(root), "gpu1"]
    return subprocess.run(words, cwd=REPOSITORY, input=json.dumps(document), capture_output=True, text=True)


@pytest.fixture
def package_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


def test_a_target_in_a_folder_is_read_and_one_that_is_trained_is_known_from_its_declaration(target_folder: Path):
    declared, read = graph_set(request(layers=6)), graph_set(request(folder=str(target_folder)))
    assert declared.buckets == read.buckets == (48, 64)
    assert declared.target["num_hidden_layers"] == 6
    assert read.target_config().hidden_size == read.target["hidden_size"] != declared.target["hidden_size"]


@pytest.mark.usefixtures("package_on_path")
def test_a_target_that_is_not_there_is_one_error_with_its_cure(tmp_path: Path):
    done = asked(request(replace(CONFIG, compile=True), folder=str(tmp_path / "nowhere")), tmp_path)
    assert done.returncode == 2
    said = json.loads(done.stderr.splitlines()[-1])
    assert said["where"] == str(tmp_path / "nowhere")
    assert said["what"].startswith("not a model folder")
