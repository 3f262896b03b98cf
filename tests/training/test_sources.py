"""A worker gets of the target what it needs, and no more."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3ForCausalLM

from dflash.model.target import target_config
from dflash.training.drafts import draft_config
from dflash.training.sources import Random, Real
from tests.training.small import CONFIG

CPU = torch.device("cpu")


def test_a_target_ends_behind_its_last_captured_layer(target_folder: Path):
    assert len(Real(target_folder, 0, features=2).target(CPU, torch.float32).model.layers) == 4
    assert len(Real(target_folder, 0).target(CPU, torch.float32).model.layers) == 6


def test_a_drafters_ends_are_the_targets(target_folder: Path, target: Qwen3ForCausalLM):
    ends = Real(target_folder, 0, features=2).ends(CPU, torch.float32)
    assert torch.equal(ends.embedding, target.model.embed_tokens.weight.float())
    assert torch.equal(ends.head, target.lm_head.weight.float())


def test_random_models_have_a_targets_first_layers_and_small_numbers(target_folder: Path):
    real, random = Real(target_folder, 0, features=2), Random(target_config(target_folder), features=2)
    one, other = (models.target(CPU, torch.bfloat16) for models in (real, random))
    shapes = [{name: each.shape for name, each in model.state_dict().items()} for model in (one, other)]
    assert shapes[0] == shapes[1]
    assert torch.equal(one.model.rotary_emb.inv_freq, other.model.rotary_emb.inv_freq)
    draft = random.draft(draft_config(random.target_config, CONFIG.draft), CPU)
    ends = random.ends(CPU, torch.float32)
    for weights in (*other.parameters(), *draft.parameters(), *ends):
        assert weights.float().abs().max() <= 1.0
        assert weights.float().std() > 0.01 or weights.ndim == 1
