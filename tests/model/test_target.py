"""The target's captured features are transformers' hidden states, whatever shares the row."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    T5Config,
)

from dflash.errors import UsageError
from dflash.model.draft import capture_layers
from dflash.model.target import Capture, load_ends, load_layers, load_target, refuse_unlike, target_config, window_of
from tests.tiny import randomize

CPU = torch.device("cpu")
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
"""transformers' RMSNorm computes in float32, so a sum in another order can move a result by some 1e-7."""


def tokens_of(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(seed))


def alone(target: PreTrainedModel, layer_ids: list[int], tokens: torch.Tensor) -> torch.Tensor:
    """The features of one document, picked from what transformers gives."""
    states = target(tokens, output_hidden_states=True).hidden_states
    return torch.cat([states[layer + 1] for layer in layer_ids], dim=-1)


SHAPE = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
KINDS = {
    "qwen3": Qwen3Config(**SHAPE),
    "qwen3-tied": Qwen3Config(**SHAPE | {"tie_word_embeddings": True}),
    "llama": LlamaConfig(**SHAPE, rope_parameters=SCALED),
    "qwen3-moe": Qwen3MoeConfig(**SHAPE, **EXPERTS, mlp_only_layers=[2]),
    "gemma": GemmaConfig(**SHAPE),  # its embedding has a scale that is in no file
}


@pytest.fixture(scope="module", params=KINDS)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    """A model of each kind in float32, and its folder as transformers writes one."""
    model = AutoModelForCausalLM.from_config(KINDS[request.param], attn_implementation="sdpa")
    randomize(model, 0)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return model.requires_grad_(False).eval(), folder


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


def test_the_layers_of_a_folder_give_transformers_hidden_states(published: tuple[PreTrainedModel, Path]):
    (model, folder), layer_ids = published, [1, 3]
    tokens = tokens_of(17)
    row = tokens, torch.arange(17)[None], torch.zeros(1, 17, dtype=torch.long)
    found = Capture(load_layers(folder, 4, CPU), layer_ids).features(*row)
    assert torch.allclose(found, alone(model, layer_ids, tokens), **CLOSE)
    halved = Capture(load_layers(folder, 4, CPU, torch.bfloat16), layer_ids).features(*row)
    assert halved.dtype == torch.bfloat16
    wanted = alone(load_target(folder, torch.bfloat16), layer_ids, tokens)
    assert torch.allclose(halved, wanted, rtol=0.05, atol=0.05)


def test_of_a_target_to_capture_from_there_is_only_what_runs(published: tuple[PreTrainedModel, Path]):
    model, folder = published
    layers = load_layers(folder, 4, CPU, torch.bfloat16)
    assert not layers.training
    found, whole = dict(layers.named_parameters()), dict(model.named_parameters())
    runs = ("model.embed_tokens.", *(f"model.layers.{index}." for index in range(4)))
    assert found.keys() == {name for name in whole if name.startswith(runs)}
    for name, parameter in found.items():
        assert not parameter.requires_grad
        assert torch.equal(parameter, whole[name].bfloat16())
    computed = dict(load_target(folder, torch.bfloat16).named_buffers())
    for name, buffer in layers.named_buffers():
        assert buffer.dtype == computed[name].dtype
        assert torch.equal(buffer, computed[name])


def test_the_ends_of_a_folder_are_the_models(published: tuple[PreTrainedModel, Path]):
    model, folder = published
    for dtype in (torch.float32, torch.bfloat16):
        ends = load_ends(folder, CPU, dtype)
        assert torch.equal(ends.embedding, model.get_input_embeddings().weight.to(dtype))
        assert torch.equal(ends.head, model.get_output_embeddings().weight.to(dtype))
        assert (ends.head is ends.embedding) == model.config.tie_word_embeddings
        assert not ends.head.requires_grad


def test_a_target_that_is_built_in_another_way_is_refused(tmp_path: Path):
    GPT2Config(n_layer=2, n_embd=8, n_head=2).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=rf"^{tmp_path}: a GPT2LMHeadModel has no layers; choose a target that is"):
        load_layers(tmp_path, 1, CPU)


def test_a_model_that_is_no_causal_lm_is_refused(tmp_path: Path):
    T5Config(d_model=8, d_kv=4, num_heads=2, num_layers=1).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=rf"^{tmp_path}: the model can not be loaded \(Unrecognized configuration"):
        load_ends(tmp_path, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_whose_states_are_captured_as_it_makes_them_is_taken(
    published: tuple[PreTrainedModel, Path], dtype: torch.dtype
):
    model = load_layers(published[1], 4, CPU, dtype)
    refuse_unlike(model, published[1])
    assert not any(module._forward_hooks for module in model.modules()), "a compiler can not trace those"


UNLIKE = {
    "scaled": (GraniteConfig(**SHAPE, embedding_multiplier=3.0), "a GraniteForCausalLM does more than run its layers"),
    "rotary-by-layer": (Gemma3TextConfig(**SHAPE), "the layers of a Gemma3ForCausalLM can not be run one by one"),
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_a_model_that_does_something_between_its_layers_is_refused(kind: str, tmp_path: Path):
    config, why = UNLIKE[kind]
    model = AutoModelForCausalLM.from_config(config)
    randomize(model, 0)
    model.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=why):
        refuse_unlike(load_layers(tmp_path, 4, CPU), tmp_path)


@pytest.mark.parametrize(
    ("config", "window"),
    [
        (Qwen3Config(**SHAPE), None),
        (Qwen3Config(**SHAPE, use_sliding_window=True, sliding_window=32, max_window_layers=4), None),
        (Qwen3Config(**SHAPE, use_sliding_window=True, sliding_window=32, max_window_layers=2), 32),
        (MistralConfig(**SHAPE, sliding_window=48), 48),
        (LlamaConfig(**SHAPE), None),
    ],
)
def test_a_window_counts_where_a_layer_that_is_run_has_it(config: PretrainedConfig, window: int | None):
    assert window_of(config, 4) == window
