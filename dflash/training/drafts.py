"""A fresh drafter for a target: its configuration, checked before any work, and its first weights."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from transformers import PretrainedConfig, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from dflash.errors import UsageError
from dflash.model.draft import FULL, SLIDING, DFlashDraftModel, capture_layers
from dflash.model.layout import publish_draft
from dflash.training.batches import generator_of
from dflash.training.config import DraftConfig, TrainConfig


def draft_config(target: PretrainedConfig, config: DraftConfig) -> Qwen3Config:
    """The drafter's transformers configuration, in the published fields.

    Raises:
        UsageError: the target has too few layers, or no row for the mask token.
    """
    try:
        layer_ids = capture_layers(target.num_hidden_layers, config.features)
    except ValueError as failure:
        raise UsageError(str(failure), where="train.draft.features", cure="capture fewer layers") from failure
    mask = config.mask_token_id
    if mask is None:
        raise UsageError("has no value", where="train.draft.mask_token_id", cure="name a vocabulary row no text uses")
    if not 0 <= mask < target.vocab_size:
        raise UsageError(
            f"{mask} is not a row of the target's vocabulary of {target.vocab_size}",
            where="train.draft.mask_token_id",
            cure="name a vocabulary row that no text uses",
        )
    heads = target.num_attention_heads
    draft = Qwen3Config(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=config.intermediate or target.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=getattr(target, "head_dim", None) or target.hidden_size // heads,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        rope_parameters=target.rope_parameters,
        layer_types=[SLIDING] * config.sliding + [FULL] * (config.layers - config.sliding),
        use_sliding_window=config.sliding > 0,
        sliding_window=config.window,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=target.eos_token_id,
        pad_token_id=None,
    )
    draft.num_target_layers = target.num_hidden_layers
    draft.block_size = config.block
    draft.dflash_config = {
        "mask_token_id": mask,
        "target_layer_ids": layer_ids,
        "block_size": config.block,
    }
    return draft


def handed_over(config: TrainConfig, draft: PretrainedConfig) -> int:
    """Numbers that a target hands over for each token: its captured states, and with `kl` what its LM head reads.
    `draft` is the drafter's configuration."""
    return (len(draft.dflash_config["target_layer_ids"]) + (config.kl > 0)) * int(draft.hidden_size)


def prove_layout(target: PretrainedConfig, config: TrainConfig, place: Path) -> None:
    """Publish the drafter as it is before its first step, in a folder below `place` that is gone afterwards: if others
    can not read it, that is better known before a long training than after it.

    Raises:
        UsageError: the configuration does not fit the target.
        CheckpointError: transformers reads something else than was written.
    """
    draft = fresh_draft(draft_config(target, config.draft), config.seed)
    with TemporaryDirectory(dir=place) as folder:
        publish_draft(draft.eval(), Path(folder))


def blank_draft(config: Qwen3Config, device: torch.device) -> DFlashDraftModel:
    """A drafter with whatever memory holds for weights."""
    with torch.device("meta"):  # the layers' own first weights would be drawn only to be replaced
        draft = DFlashDraftModel(config)
    draft.to_empty(device=device)
    draft.rotary_emb = Qwen3RotaryEmbedding(config).to(device)  # its frequencies are no weights
    return draft


def fresh_draft(config: Qwen3Config, seed: int) -> DFlashDraftModel:
    """A drafter with its first weights, which `seed` alone decides, whatever other threads draw meanwhile. Each
    parameter has a generator of its own, so that all processors draw: an 8B target's drafter has a billion numbers.
    """
    draft = blank_draft(config, torch.device("cpu"))

    def fill(name: str, parameter: Tensor) -> None:
        if parameter.ndim == 2:
            generator = generator_of("first weights", seed, name)
            parameter.normal_(0.0, config.initializer_range, generator=generator)
        else:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda item: fill(item[0], item[1].data), draft.named_parameters()):
            pass
    return draft
