"""Of a model folder only what is wanted is read, and what is wanted and not there is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM, Qwen3MoeConfig

from dflash.errors import UsageError
from dflash.model.target import load_ends, load_layers, load_target

CPU = torch.device("cpu")
LATER = ("model.layers.4.", "model.layers.5.", "model.norm.", "lm_head.")
BETWEEN = ("model.layers.", "model.norm.")


@pytest.fixture
def sharded(target_folder: Path, tmp_path: Path) -> Path:
    """The target in shards of a few tensors each."""
    model = Qwen3ForCausalLM.from_pretrained(target_folder, dtype=torch.float32)
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    return tmp_path


def places(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    return found


def drop_files(folder: Path, unwanted: tuple[str, ...]) -> None:
    """Delete each shard that holds no other tensors than those whose names begin so."""
    kept = {file for name, file in places(folder).items() if not name.startswith(unwanted)}
    dropped = set(places(folder).values()) - kept
    assert dropped
    for file in dropped:
        (folder / file).unlink()


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def single(target_folder: Path, tmp_path: Path) -> Path:
    """A copy of the target's folder, to be damaged."""
    shutil.copytree(target_folder, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_shards_of_later_layers_need_not_exist_to_capture_from_earlier_ones(sharded: Path, target: Qwen3ForCausalLM):
    drop_files(sharded, LATER)
    layers = load_layers(sharded, 4, CPU)
    assert torch.equal(layers.model.layers[3].mlp.up_proj.weight, target.model.layers[3].mlp.up_proj.weight.float())
    with pytest.raises(UsageError, match=rf"^{sharded}: the model can not be loaded \(.*safetensors.*\); copy"):
        load_target(sharded)


def test_shards_of_layers_need_not_exist_for_the_ends(sharded: Path, target: Qwen3ForCausalLM):
    drop_files(sharded, BETWEEN)
    ends = load_ends(sharded, CPU)
    assert torch.equal(ends.embedding, target.model.embed_tokens.weight.float())
    assert torch.equal(ends.head, target.lm_head.weight.float())


def test_a_shard_that_is_needed_and_not_there_is_named(sharded: Path):
    file = places(sharded)["model.layers.3.mlp.up_proj.weight"]
    (sharded / file).unlink()
    with pytest.raises(UsageError, match=rf"^{sharded}: the model can not be loaded \(.*{file}.*\); copy the model"):
        load_layers(sharded, 4, CPU)


def test_a_shard_that_lacks_what_the_index_says_is_named(sharded: Path):
    name = "model.layers.3.mlp.up_proj.weight"
    file = sharded / places(sharded)[name]
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(UsageError, match=rf"^{sharded}: the model can not be loaded \(.*{name}.*\); copy the model"):
        load_layers(sharded, 4, CPU)


def test_later_tensors_need_not_be_in_the_one_file(single: Path):
    def cut(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.startswith(LATER)]:
            del tensors[name]

    rewrite(single, cut)
    assert len(load_layers(single, 4, CPU).model.layers) == 4
    with pytest.raises(UsageError, match=rf"^{single}: the weights lack lm_head.weight and 23 more; copy the model"):
        load_target(single)


def test_a_missing_weight_of_a_layer_that_runs_is_named(single: Path):
    rewrite(single, lambda tensors: tensors.pop("model.layers.3.mlp.up_proj.weight"))
    with pytest.raises(UsageError, match=rf"^{single}: the weights lack model.layers.3.mlp.up_proj.weight; copy the"):
        load_layers(single, 4, CPU)
    load_layers(single, 3, CPU)


def test_a_missing_lm_head_is_named(single: Path):
    rewrite(single, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(UsageError, match=rf"^{single}: the weights lack lm_head.weight; copy the model folder again"):
        load_ends(single, CPU)


def test_weights_of_another_shape_are_named(single: Path):
    rewrite(single, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(5, 32)}))
    with pytest.raises(UsageError, match=r"\(lm_head.weight is \(5, 32\) in the weights, \(\d+, 32\) by the config"):
        load_ends(single, CPU)


def test_quantised_weights_are_refused(single: Path):
    config = json.loads((single / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (single / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=rf"^{single}: the model can not be loaded \(its weights are quantised\)"):
        load_ends(single, CPU)


def test_an_index_that_is_none_is_refused(sharded: Path):
    (sharded / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UsageError, match=rf"^{sharded}: the model can not be loaded \(.*weight_map"):
        load_ends(sharded, CPU)


def test_experts_lie_apart_in_a_file_and_one_that_is_missing_is_noticed(tmp_path: Path):
    config = Qwen3MoeConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        moe_intermediate_size=24,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    load_layers(tmp_path, 1, CPU)
    rewrite(tmp_path, lambda tensors: tensors.pop("model.layers.0.mlp.experts.2.down_proj.weight"))
    with pytest.raises(UsageError, match=r"model.layers.0.mlp.experts.down_proj is \(3, .*\) in the weights, \(4, "):
        load_layers(tmp_path, 1, CPU)
