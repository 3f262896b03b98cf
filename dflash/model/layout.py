"""The published layout of a drafter: what z-lab, SGLang, vLLM and transformers read.

`config.json` holds the ordinary Qwen3 fields plus `block_size` (top level and in `dflash_config`, because readers
differ), both RoPE schemas (ditto), and `auto_map`, which names the class in the `dflash.py` shipped beside the
weights. The target's embedding and LM head are not part of it.

What others have published is read too: either RoPE schema, either place of `block_size`, any dtype, shards with an
index, names that begin with `model.`, and copies of the target's embedding and head, which are left out. Some drafters
bear the same class name and compute something else; they are refused by the field that says so.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel, Qwen3Config

from dflash.errors import CheckpointError
from dflash.model import draft as draft_module
from dflash.model.draft import FULL, SLIDING, DFlashDraftModel
from dflash.model.tensors import write_tensors

WEIGHTS, INDEX, CONFIG, CODE = "model.safetensors", "model.safetensors.index.json", "config.json", "dflash.py"
CLASS = "DFlashDraftModel"

NOT_THE_DRAFTERS = {"embed_tokens.weight", "lm_head.weight", "rotary_emb.inv_freq"}
"""Tensors that some writers add: the target's own, which a drafter is never trained on, and a constant."""

PLAIN: dict[str, tuple[object, ...]] = {
    "attention_sink_bias": (False,),
    "attention_value_scale": (1,),
    "final_logit_softcapping": (0,),
    "input_embedding_scale": (1,),
    "output_multiplier": (1,),
    "projector_type": ("dflash",),
    "sample_from_anchor": (False,),
    "use_swa": (False,),
}
"""Fields of published drafters, at the top or in `dflash_config`, and the values with which they compute what this
model does; null is always one."""

CAUSAL = ("causal", "is_causal")
"""Such fields that make the blocks of all layers causal, or those of none, instead of those of sliding layers."""


def published_config(config: Qwen3Config, dtype: torch.dtype) -> dict[str, Any]:
    """The fields of `config.json`."""
    fields: dict[str, Any] = config.to_dict()
    for unused in ("_name_or_path", "id2label", "label2id", "problem_type"):
        fields.pop(unused, None)
    rope = dict(config.rope_parameters)
    sliding = SLIDING in config.layer_types
    fields |= {
        "architectures": [CLASS],
        "auto_map": {"AutoModel": f"dflash.{CLASS}"},
        "model_type": "qwen3",
        "num_target_layers": config.num_target_layers,
        "block_size": config.block_size,
        "dflash_config": {**config.dflash_config, "block_size": config.block_size},
        "layer_types": list(config.layer_types),
        "use_sliding_window": sliding,
        "sliding_window": config.sliding_window if sliding else None,
        "max_window_layers": config.num_hidden_layers,
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if rope.get("rope_type", "default") == "default" else rope,
        "rope_parameters": rope,
    }
    return fields


def write_layout(model: DFlashDraftModel, folder: Path) -> None:
    """Write config, weights and code of `model` into an existing folder."""
    write_tensors(folder / WEIGHTS, model.state_dict())
    write_description(model, folder)


def write_description(model: DFlashDraftModel, folder: Path) -> None:
    """Write config and code, what the layout has beside the weights."""
    fields = published_config(model.config, next(model.parameters()).dtype)
    (folder / CONFIG).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    shutil.copyfile(draft_module.__file__, folder / CODE)


def read_config(folder: Path) -> Qwen3Config:
    """The configuration of a published drafter.

    Raises:
        ValueError: it is not one of this model, or two readers would read two things in it.
    """
    fields = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    own = fields.get("dflash_config")
    if not isinstance(own, dict):
        raise ValueError("config.json has no dflash_config")
    if other := [name for name in fields.get("architectures") or () if name != CLASS]:
        raise ValueError(f"it is a {other[0]}, not a {CLASS}")
    for name in ("mask_token_id", "target_layer_ids"):
        if own.get(name) is None:
            raise ValueError(f"dflash_config has no {name}")
    _refuse_other_values(fields, PLAIN)
    sizes = {value for value in (fields.get("block_size"), own.get("block_size")) if value is not None}
    if len(sizes) != 1:
        raise ValueError(f"block_size is given {'twice, differently' if sizes else 'nowhere'}")
    fields["block_size"] = sizes.pop()
    config = Qwen3Config.from_dict(fields)
    kinds, window = set(config.layer_types), config.sliding_window
    if unknown := kinds - {FULL, SLIDING}:
        raise ValueError(f"it has layers of the kind {min(unknown)}, which this model does not compute")
    if SLIDING in kinds and (window is None or window < config.block_size):
        raise ValueError(f"it has sliding layers, but its sliding_window in use is {json.dumps(window)}: below a block")
    everywhere = (SLIDING in kinds,) if len(kinds) == 1 else ()
    _refuse_other_values(fields, dict.fromkeys(CAUSAL, everywhere))
    return config


def _refuse_other_values(fields: dict[str, Any], plain: Mapping[str, tuple[object, ...]]) -> None:
    for name, values in plain.items():
        for value in (fields.get(name), fields["dflash_config"].get(name)):
            if value is not None and value not in values:
                raise ValueError(f"its {name} is {json.dumps(value)}, which this model does not compute")


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The drafter's tensors by their published names, as they lie in one file or in the shards of an index.

    Raises:
        ValueError: a shard lacks a tensor that the index says is in it.
    """
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        tensors = load_file(folder / WEIGHTS)
    else:
        places: dict[str, str] = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        tensors = {}
        for shard in sorted(set(places.values())):
            tensors |= load_file(folder / shard)
        if absent := sorted(places.keys() - tensors.keys()):
            raise ValueError(f"{places[absent[0]]} lacks {absent[0]}, which the index says is in it")
    named = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in named.items() if name not in NOT_THE_DRAFTERS}


def load_draft(folder: Path) -> DFlashDraftModel:
    """A drafter from a folder in the published layout, in evaluation mode, in float32.

    Raises:
        CheckpointError: a file is missing or damaged, a tensor is missing, unknown or of another shape, or the drafter
            is of another kind: with scaled logits or a selector of candidates, say.
    """
    try:
        model = DFlashDraftModel(read_config(folder))
        model.load_state_dict({name: tensor.float() for name, tensor in read_weights(folder).items()})
    except Exception as failure:  # safetensors and transformers' configurations have exception classes of their own
        raise CheckpointError(
            f"not a drafter that can be loaded ({type(failure).__name__}: {failure})", where=str(folder)
        ) from failure
    return model.eval()


def publish(source: Path, out: Path) -> dict[str, Any]:
    """Write the drafter of `source` into `out`, and prove it as `publish_draft` does. Returns what was written.

    Raises:
        CheckpointError: the drafter can not be loaded, or differs when transformers does.
    """
    mine = load_draft(source)
    publish_draft(mine, out)
    return {"tensors": len(mine.state_dict()), "parameters": sum(p.numel() for p in mine.parameters())}


@torch.no_grad()
def publish_draft(mine: DFlashDraftModel, out: Path) -> None:
    """Write a drafter, in float32, into `out` and prove it: transformers loads it by its own `auto_map`, with the same
    output to the last bit, after a context that is longer than the longest window.

    Raises:
        CheckpointError: the reloaded drafter differs.
    """
    write_layout(mine, out)
    theirs = AutoModel.from_pretrained(out, trust_remote_code=True, local_files_only=True, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    size = mine.config.hidden_size
    length = 5 + max(window or 0 for window in mine.windows)
    features = torch.randn(1, length, len(mine.target_layer_ids) * size, generator=generator)
    block = torch.randn(1, mine.block_size, size, generator=generator)
    before, after = torch.arange(length + mine.block_size)[None].split((length, mine.block_size), dim=1)
    outputs = [model(block, after, model.extend(None, features, before)) for model in (mine, theirs)]
    if not torch.equal(*outputs):
        raise CheckpointError("reloaded by transformers, the drafter gives another output", where=str(out))
