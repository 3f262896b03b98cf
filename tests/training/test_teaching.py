"""A training that learns the target's distribution, and not its tokens alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dflash.errors import UsageError
from dflash.training.config import Topology, TrainConfig
from dflash.training.trainer import Trainer
from tests.training.logged import read_metrics
from tests.training.small import CONFIG, Watching, as_json, rows, train

LAST_SLIDES = ["full_attention"] * 5 + ["sliding_attention"]


def losses(out: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(out / "metrics.jsonl")]


@pytest.mark.parametrize("loss", ["decay", "dpace"])
def test_the_divergence_from_the_target_becomes_less(target_folder: Path, tmp_path: Path, loss: str):
    train(target_folder, tmp_path, kl=0.9, loss=loss, steps=20, topology=Topology(2, 1), rows=2)
    found = losses(tmp_path)
    assert sum(found[-4:]) < sum(found[:4])


def test_every_drafter_learns_from_the_same_target(target_folder: Path, tmp_path: Path):
    """One drafter with all the micro-batches of a step against three with one each."""
    train(target_folder, tmp_path / "one", kl=0.5, topology=Topology(1, 1), accumulate=3, steps=3)
    train(target_folder, tmp_path / "three", kl=0.5, steps=3)
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "three"), rel=1e-4)


@pytest.mark.nightly
def test_its_graphs_are_a_closed_set_too(target_folder: Path, tmp_path: Path):
    config = replace(CONFIG, kl=0.5, steps=4, topology=Topology(1, 2), compile=True)
    program = [sys.executable, "-m", "tests.training.small", target_folder, tmp_path, "[32, 48]", as_json(config)]
    subprocess.run(program, check=True, env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")})
    assert len(losses(tmp_path)) == 4


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_beyond_the_whole_is_refused(share: float):
    with pytest.raises(ValueError, match="kl is a share of the loss"):
        TrainConfig(kl=share)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"final_logit_softcapping": 30.0}, r"train\.kl: the target's final_logit_softcapping \(30\.0\) changes its"),
        (
            {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 5, "layer_types": None},
            "the 40 that",
        ),
    ],
)
def test_a_target_whose_distribution_would_be_another_is_refused_before_any_work(
    target_folder: Path, tmp_path: Path, fields: dict[str, object], complaint: str
):
    """Its logits are changed behind the head, or its last layer, which no feature needs, looks less far back."""
    described = json.loads((target_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(described | fields))
    Trainer(CONFIG, tmp_path, rows(), Watching())
    with pytest.raises(UsageError, match=complaint):
        Trainer(replace(CONFIG, kl=0.5), tmp_path, rows(), Watching())
