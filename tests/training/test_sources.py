"""A worker gets of the target what it needs, and no more."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3ForCausalLM

from dflash.training.sources import Real

CPU = torch.device("cpu")


def test_a_target_ends_behind_its_last_captured_layer(target_folder: Path):
    assert len(Real(target_folder, 0, features=2).target(CPU, torch.float32).model.layers) == 4
    assert len(Real(target_folder, 0).target(CPU, torch.float32).model.layers) == 6


def test_a_drafters_ends_are_the_targets(target_folder: Path, target: Qwen3ForCausalLM):
    ends = Real(target_folder, 0, features=2).ends(CPU, torch.float32)
    assert torch.equal(ends.embedding, target.model.embed_tokens.weight.float())
    assert torch.equal(ends.head, target.lm_head.weight.float())
