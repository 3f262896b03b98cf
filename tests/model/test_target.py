"""The target's captured features are transformers' hidden states, whatever shares the row."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3ForCausalLM

from dflash.errors import UsageError
from dflash.model.draft import capture_layers
from dflash.model.target import Capture, load_target, target_config

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
"""transformers' RMSNorm computes in float32, so a sum in another order can move a result by some 1e-7."""


def tokens_of(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(seed))


def alone(target: Qwen3ForCausalLM, layer_ids: list[int], tokens: torch.Tensor) -> torch.Tensor:
    """The features of one document, picked from what transformers gives."""
    states = target(tokens, output_hidden_states=True).hidden_states
    return torch.cat([states[layer + 1] for layer in layer_ids], dim=-1)


@pytest.mark.parametrize("layer_ids", [[1, 2, 3], [0], [3, 1], capture_layers(6, 2)])
def test_a_feature_is_the_hidden_state_after_its_layer(target: Qwen3ForCausalLM, layer_ids: list[int]):
    tokens = tokens_of(17)
    positions, documents = torch.arange(17)[None], torch.zeros(1, 17, dtype=torch.long)
    found = Capture(target, layer_ids).features(tokens, positions, documents)
    assert found.shape == (1, 17, len(layer_ids) * 32)
    assert torch.allclose(found, alone(target, layer_ids, tokens), **CLOSE)
    shifted = alone(target, [layer - 1 for layer in layer_ids], tokens)
    assert not torch.allclose(found, shifted, rtol=0.1, atol=0.1)


def test_packed_documents_have_the_features_they_have_alone(target: Qwen3ForCausalLM):
    layer_ids, sizes = [1, 2, 3], [5, 1, 8]
    pieces = [tokens_of(size, seed) for seed, size in enumerate(sizes)]
    padding = torch.zeros(1, 4, dtype=torch.long)
    tokens = torch.cat((*pieces, padding), dim=1)
    documents = torch.tensor([[0] * 5 + [1] + [2] * 8 + [-1] * 4])
    positions = torch.cat([torch.arange(size) for size in (*sizes, 4)])[None]
    packed = Capture(target, layer_ids).features(tokens, positions, documents)
    assert torch.isfinite(packed).all()
    for number, piece in enumerate(pieces):
        assert torch.allclose(packed[:, documents[0] == number], alone(target, layer_ids, piece), **CLOSE)


def test_no_layer_runs_after_the_last_captured_one(target: Qwen3ForCausalLM):
    ran = []

    def run(layer, hidden, mask, cos, sin):
        ran.append(layer)
        return layer(hidden, attention_mask=mask, position_embeddings=(cos, sin))

    Capture(target, [1, 3], run).features(tokens_of(4), torch.arange(4)[None], torch.zeros(1, 4, dtype=torch.long))
    assert ran == list(target.model.layers[:4])


def test_a_model_folder_is_loaded_frozen_in_the_dtype_asked_for(target_folder: Path, target: Qwen3ForCausalLM):
    loaded = load_target(target_folder, torch.float64)
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert all(parameter.dtype == torch.float64 for parameter in loaded.parameters())
    assert torch.equal(loaded.lm_head.weight, target.lm_head.weight.float().double())
    assert target_config(target_folder).num_hidden_layers == 6


def test_a_folder_without_a_model_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=rf"^{tmp_path}: not a model folder .*; name a folder with config.json"):
        load_target(tmp_path)


def test_a_config_with_a_wrong_type_is_named(tmp_path: Path, target_folder: Path):
    config = (target_folder / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"hidden_size": 32', '"hidden_size": "large"'))
    with pytest.raises(UsageError, match=rf"^{tmp_path}: not a model folder .*hidden_size"):
        load_target(tmp_path)


def test_a_model_without_weights_is_named(tmp_path: Path, target_folder: Path):
    shutil.copy(target_folder / "config.json", tmp_path)
    with pytest.raises(UsageError, match=rf"^{tmp_path}: the model can not be loaded"):
        load_target(tmp_path)


def test_a_torn_weight_file_is_named(tmp_path: Path, target_folder: Path):
    shutil.copytree(target_folder, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UsageError, match=rf"^{tmp_path}: the model can not be loaded"):
        load_target(tmp_path)


def test_a_missing_lm_head_is_not_made_up(tmp_path: Path, target_folder: Path):
    """transformers would fill it with random numbers and only warn; a drafter trained against that learns nothing."""
    shutil.copytree(target_folder, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=rf"^{tmp_path}: the weights lack lm_head.weight"):
        load_target(tmp_path)
