"""A training that goes on from a drafter that somebody has published, and what is not gone on from."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dflash.errors import CheckpointError
from dflash.model.layout import load_draft
from dflash.pipeline.steps import KINDS
from dflash.training.config import Topology
from dflash.training.trainer import Trainer
from tests.tiny import new_target
from tests.training.logged import read_metrics
from tests.training.small import CONFIG, Watching, rows, train

SMALL = {"topology": Topology(1, 1), "evaluate_every": 0, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def trained(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    train(target_folder, out, steps=8, **SMALL)
    return out


def test_it_begins_with_the_weights_of_the_drafter_it_is_shown(trained: Path, target_folder: Path, tmp_path: Path):
    still = replace(CONFIG.optimizer, lr=1e-30)
    train(target_folder, tmp_path, steps=1, optimizer=still, start=str(trained / "draft"), **SMALL)
    mine, theirs = (load_draft(out / "draft").state_dict() for out in (tmp_path, trained))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    first, last = (read_metrics(out / "metrics.jsonl") for out in (tmp_path, trained))
    assert first[0]["loss"] < last[0]["loss"]


def test_it_may_draft_fewer_tokens_at_once(trained: Path, target_folder: Path, tmp_path: Path):
    train(target_folder, tmp_path, steps=1, draft=replace(CONFIG.draft, block=3), start=str(trained / "draft"), **SMALL)
    assert load_draft(tmp_path / "draft").block_size == 3


def test_a_drafter_of_another_shape_is_refused_with_all_that_differs(trained: Path, target_folder: Path):
    wide = replace(CONFIG.draft, intermediate=56, features=3)
    complaint = r"another shape: its intermediate_size is 48, not 56, its target_layer_ids is \[1, 3\], not \[1, 2, 3\]"
    with pytest.raises(CheckpointError, match=complaint):
        Trainer(replace(CONFIG, draft=wide, start=str(trained / "draft")), target_folder, rows(), Watching())


def test_a_folder_without_a_drafter_is_named(target_folder: Path, tmp_path: Path):
    with pytest.raises(CheckpointError, match=rf"^{tmp_path}: not a drafter that can be read"):
        Trainer(replace(CONFIG, start=str(tmp_path)), target_folder, rows(), Watching())


def test_a_drafters_description_that_is_none_is_named(target_folder: Path, tmp_path: Path):
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=rf"^{tmp_path}: not a drafter that can be read"):
        Trainer(replace(CONFIG, start=str(tmp_path)), target_folder, rows(), Watching())


def test_another_drafter_to_start_from_makes_the_step_run_again(trained: Path, tmp_path: Path):
    folder = shutil.copytree(trained / "draft", tmp_path / "draft")
    fingerprint = KINDS["train"].fingerprint
    assert fingerprint(CONFIG) == {}
    before = fingerprint(replace(CONFIG, start=str(folder)))
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | {"block_size": 5}))
    after = fingerprint(replace(CONFIG, start=str(folder)))
    assert {name for name in before if before[name] != after[name]} == {"config.json"}


def test_a_checkpoint_of_another_target_is_not_gone_on_from(trained: Path, tmp_path: Path):
    """Not even if the drafter would have the same shape."""
    out = shutil.copytree(trained, tmp_path / "out")
    new_target(seed=3, layers=7).save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="step-00000008: was made with another target; train into another folder"):
        train(tmp_path / "other", out, steps=9, **SMALL)
