"""Whether a drafter belongs to a target: what their two configurations tell, before any weight is used."""

from __future__ import annotations

from pathlib import Path

from transformers import PretrainedConfig

from dflash.errors import CheckpointError
from dflash.model.layout import read_config


def refuse_misfit(draft: PretrainedConfig, target: PretrainedConfig, where: str) -> None:
    """Compare hidden size, vocabulary, depth, captured layers and mask token; `where` is the drafter's folder.

    Raises:
        CheckpointError: the drafter is for another target; names all that differs, with both values.
    """
    found = misfits(draft, target)
    if found:
        raise CheckpointError(
            f"the drafter is not for this target: {', '.join(found)}",
            where=where,
            cure="name the target that it was trained for",
        )


def refuse_other_shape(folder: Path, wanted: PretrainedConfig) -> None:
    """Compare a published drafter that is to be trained on with the configuration `wanted`. The size of its block is in
    no weight, and may differ.

    Raises:
        CheckpointError: `folder` holds no drafter, or one of another shape; names all that differs, with both values.
    """
    try:
        found = read_config(folder)
    except Exception as failure:  # transformers' configurations have exception classes of their own
        raise CheckpointError(f"not a drafter that can be read ({failure})", where=str(folder)) from failure
    pairs = {name: (getattr(found, name), getattr(wanted, name)) for name in SHAPE}
    for name in ("target_layer_ids", "mask_token_id"):
        pairs[name] = found.dflash_config[name], wanted.dflash_config[name]
    if differing := [f"its {name} is {mine}, not {asked}" for name, (mine, asked) in pairs.items() if mine != asked]:
        raise CheckpointError(
            f"the drafter to start from has another shape: {', '.join(differing)}",
            where=str(folder),
            cure="set train.draft as it was trained, or start from another",
        )


SHAPE = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_parameters", "layer_types", "sliding_window"),
)
"""The fields that decide a drafter's weights, or what is computed with them."""


def misfits(draft: PretrainedConfig, target: PretrainedConfig) -> list[str]:
    """What does not fit, each in a few words."""
    layers, mask = draft.dflash_config["target_layer_ids"], draft.dflash_config["mask_token_id"]
    rows, depth = target.vocab_size, target.num_hidden_layers
    found = [
        f"its {name} is {mine}, the target's {theirs}"
        for name in ("hidden_size", "vocab_size")
        if (mine := getattr(draft, name)) != (theirs := getattr(target, name))
    ]
    if getattr(draft, "num_target_layers", None) not in (None, depth):  # older checkpoints do not say it
        found.append(f"its num_target_layers is {draft.num_target_layers}, the target has {depth}")
    if not layers or not all(0 <= layer < depth for layer in layers):
        found.append(f"it captures the layers {layers}, the target has 0 to {depth - 1}")
    if not 0 <= mask < rows:
        found.append(f"its mask token {mask} is not one of the target's {rows}")
    return found
