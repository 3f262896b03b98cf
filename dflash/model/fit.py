"""Whether a drafter belongs to a target: what their two configurations tell, before any weight is used."""

from __future__ import annotations

from transformers import PretrainedConfig

from dflash.errors import CheckpointError


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
