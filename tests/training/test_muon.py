"""Muon is torch's, clips, passes over what is not finite, and goes on from a checkpoint to the same bits."""

from __future__ import annotations

import math
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig

from dflash.errors import CheckpointError
from dflash.model.weights import FlatWeights
from dflash.training.config import OptimizerConfig, Topology
from dflash.training.graphset import GraphSet
from dflash.training.muon import Muon
from dflash.training.optimizer import set_rate
from tests.tiny import new_draft
from tests.training.logged import read_metrics
from tests.training.small import CONFIG, train

MUON = OptimizerConfig(name="muon", lr=1e-2)
STEPS = 10
SMALL = Topology(targets=1, drafters=2)


def flat_of(dtype: torch.dtype = torch.float32, seed: int = 1) -> FlatWeights:
    return FlatWeights(new_draft(seed).to(dtype))


def gradients_of(flat: FlatWeights, step: int) -> dict[str, Tensor]:
    """Random ones, put into `flat`; some steps' are larger than others', so that clipping tells in the momentum."""
    generator = torch.Generator().manual_seed(step)
    parts = flat.named(flat.gradients)
    for part in parts.values():
        part.copy_(torch.randn(part.shape, generator=generator) * (step % 2 + 1))
    return parts


def take(muon: Muon, flat: FlatWeights, step: int, spoil: float = 1.0) -> float:
    gradients_of(flat, step)["norm.weight"].mul_(spoil)
    return muon.step(step, flat.gradients.float().norm())


def state_of(muon: Muon) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in muon.tensors().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("clip", [1e9, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_its_steps_are_those_of_torchs_muon_and_adamw_on_separate_parameters(clip: float, dtype: torch.dtype):
    flat = flat_of(dtype)
    mine = Muon(flat, replace(MUON, clip=clip, weight_decay=0.5), steps=STEPS)
    plain = {name: value.float().clone() for name, value in flat.named(flat.values).items()}
    matrices = [value for value in plain.values() if value.ndim == 2]
    norms = [value for value in plain.values() if value.ndim == 1]
    assert len(matrices) == 2 * 7 + 1, "of each layer q, k, v, o, gate, up and down; fc"
    muon = torch.optim.Muon(matrices, weight_decay=0.5, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(norms, betas=(0.9, 0.95), weight_decay=0.5)
    for step in range(4):
        lr = take(mine, flat, step)
        scale = (clip / flat.gradients.float().norm()).clamp(max=1.0)
        assert (scale < 1) == (clip == 3.0)
        for name, gradient in flat.named(flat.gradients).items():
            plain[name].grad = gradient.float() * scale
        set_rate([muon], lr)
        set_rate([adamw], lr / 10)
        muon.step()
        adamw.step()
        for name, value in flat.named(flat.values).items():
            if value.ndim == 2:
                assert torch.equal(value, plain[name].to(dtype)), name
            elif dtype == torch.float32:
                assert torch.allclose(value, plain[name], rtol=1e-5, atol=1e-6), name
            else:
                assert torch.allclose(mine.tensors()[f"{name}/master"], plain[name], rtol=1e-5, atol=1e-6), name


def test_the_norms_rate_is_the_matrices_by_the_ratio():
    flats = [flat_of(), flat_of(), flat_of()]
    configs = (MUON, replace(MUON, muon_ratio=5.0), replace(MUON, lr=MUON.lr * 2))
    for flat, config in zip(flats, configs, strict=True):
        take(Muon(flat, config, steps=STEPS), flat, 0)
    base, ratio, rate = (flat.named(flat.values) for flat in flats)
    for name in base:
        assert torch.equal(base[name], ratio[name]) == (base[name].ndim == 2), name
        assert torch.equal(rate[name], ratio[name]) == (base[name].ndim == 1), name


@pytest.mark.parametrize("spoil", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_that_is_not_finite_changes_neither_weights_nor_state(spoil: float, dtype: torch.dtype):
    flat = flat_of(dtype)
    muon = Muon(flat, replace(MUON, weight_decay=0.1), steps=STEPS)
    for step in range(3):
        take(muon, flat, step)
        state, values = state_of(muon), flat.values.clone()
        take(muon, flat, step, spoil=spoil)
        assert torch.equal(flat.values, values)
        assert same(muon.tensors(), state)


def test_warming_changes_neither_weights_nor_state():
    flat = flat_of()
    muon = Muon(flat, MUON, steps=STEPS)
    take(muon, flat, 0)
    state, values = state_of(muon), flat.values.clone()
    muon.warm()
    assert torch.equal(flat.values, values)
    assert same(muon.tensors(), state)


def test_replicas_in_threads_stay_equal_to_the_last_bit():
    flats = [flat_of() for _ in range(3)]
    replicas = [Muon(flat, MUON, steps=STEPS) for flat in flats]

    def run(place: int) -> None:
        for step in range(4):
            take(replicas[place], flats[place], step)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(flats[0].values, flats[1].values)
    assert torch.equal(flats[0].values, flats[2].values)
    assert same(replicas[0].tensors(), replicas[1].tensors())


def weights(out: Path) -> dict[str, Tensor]:
    return load_file(out / "draft" / "model.safetensors")


def losses(out: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(out / "metrics.jsonl")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_training_cut_off_after_a_checkpoint_resumes_to_the_same_bits(
    target_folder: Path, tmp_path: Path, dtype: str
):
    settings: dict[str, Any] = {"optimizer": MUON, "dtype": dtype, "steps": 8, "topology": SMALL}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(target_folder, whole, **settings)
    shutil.copytree(whole / "scratch", cut / "scratch")
    shutil.rmtree(cut / "scratch" / "checkpoints" / "step-00000008")
    assert train(target_folder, cut, **settings)["resumed_at"] == 4
    assert same(weights(whole), weights(cut))
    assert losses(cut)[-4:] == losses(whole)[-4:]
    state = load_file(cut / "scratch" / "checkpoints" / "step-00000004" / "optimizer.safetensors")
    entries = {name.rpartition("/")[2] for name in state}
    assert entries == {"count", "mean", "momentum", "square"} | ({"master"} if dtype == "bfloat16" else set())


def test_training_lowers_the_loss(target_folder: Path, tmp_path: Path):
    train(target_folder, tmp_path, steps=20, topology=SMALL, optimizer=replace(MUON, lr=0.1))
    assert sum(losses(tmp_path)[-5:]) < 0.95 * sum(losses(tmp_path)[:5])


def test_a_checkpoint_of_adamw_is_refused_by_field(target_folder: Path, tmp_path: Path):
    train(target_folder, tmp_path, steps=4, topology=SMALL)
    with pytest.raises(CheckpointError, match="another configuration: optimizer"):
        train(target_folder, tmp_path, steps=4, topology=SMALL, optimizer=replace(CONFIG.optimizer, name="muon"))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"name": "lion"}, "name is adamw or muon, not 'lion'"),
        ({"name": "muon", "muon_ratio": 0.0}, "muon_ratio must be above 0, not 0.0"),
    ],
)
def test_what_can_not_be_built_is_refused_by_name(fields: dict[str, Any], complaint: str):
    with pytest.raises(ValueError, match=complaint):
        OptimizerConfig(**fields)


def test_its_graphs_are_a_set_of_their_own_whatever_the_rate(target_folder: Path):
    """The update of the norms alone is another graph than that of all weights."""
    target = AutoConfig.from_pretrained(target_folder)
    optimizers = (CONFIG.optimizer, MUON, replace(MUON, lr=1.0))
    adamw, muon, faster = (GraphSet.of(replace(CONFIG, optimizer=each), target, [48]).key() for each in optimizers)
    assert adamw != muon
    assert muon == faster
