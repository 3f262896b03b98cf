"""The published layout of a drafter: what z-lab, SGLang, vLLM and transformers read.

`config.json` holds the ordinary Qwen3 fields plus `block_size` (top level and in `dflash_config`, because readers
differ), both RoPE schemas (ditto), and `auto_map`, which names the class in the `dflash.py` shipped beside the
weights. The target's embedding and LM head are not part of it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModel, Qwen3Config

from dflash.errors import CheckpointError
from dflash.model import draft as draft_module
from dflash.model.draft import DFlashDraftModel
from dflash.model.tensors import write_tensors

WEIGHTS, CONFIG, CODE = "model.safetensors", "config.json", "dflash.py"
FULL = "full_attention"


def published_config(config: Qwen3Config, dtype: torch.dtype) -> dict[str, Any]:
    """The fields of `config.json`."""
    fields: dict[str, Any] = config.to_dict()
    for unused in ("_name_or_path", "id2label", "label2id", "problem_type"):
        fields.pop(unused, None)
    rope = dict(config.rope_parameters)
    fields |= {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3",
        "num_target_layers": config.num_target_layers,
        "block_size": config.block_size,
        "dflash_config": {**config.dflash_config, "block_size": config.block_size},
        "layer_types": [FULL] * config.num_hidden_layers,
        "use_sliding_window": False,
        "sliding_window": None,
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
    tensors = model.state_dict()
    write_tensors(folder / WEIGHTS, tensors)
    fields = published_config(model.config, next(iter(tensors.values())).dtype)
    (folder / CONFIG).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    shutil.copyfile(draft_module.__file__, folder / CODE)


def load_draft(folder: Path) -> DFlashDraftModel:
    """A drafter from a folder in the published layout, in evaluation mode, in float32.

    Either RoPE schema and either place of `block_size` will do.

    Raises:
        CheckpointError: a file is missing or damaged, a tensor is missing, unknown or of another shape, or a layer
            has sliding attention, which this model does not have.
    """
    try:
        fields = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        fields.setdefault("block_size", fields["dflash_config"].get("block_size"))
        config = Qwen3Config.from_dict(fields)
        if set(config.layer_types) != {FULL}:
            raise ValueError("it has layers with sliding attention")
        model = DFlashDraftModel(config)
        model.load_state_dict({name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()})
    except Exception as failure:  # safetensors and transformers' configurations have exception classes of their own
        raise CheckpointError(
            f"not a drafter that can be loaded ({type(failure).__name__}: {failure})", where=str(folder)
        ) from failure
    return model.eval()


def publish(source: Path, out: Path) -> dict[str, Any]:
    """Write the drafter of `source` into `out` and prove it: transformers loads it by its own `auto_map`, with the
    same output to the last bit. Returns what was written.

    Raises:
        CheckpointError: the reloaded drafter differs.
    """
    mine = load_draft(source)
    write_layout(mine, out)
    theirs = AutoModel.from_pretrained(out, trust_remote_code=True, local_files_only=True, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    size = mine.config.hidden_size
    features = torch.randn(1, 5, len(mine.target_layer_ids) * size, generator=generator)
    block = torch.randn(1, mine.block_size, size, generator=generator)
    positions = torch.arange(5 + mine.block_size)[None]
    outputs = [
        model(block, positions[:, 5:], model.extend(None, features, positions[:, :5])) for model in (mine, theirs)
    ]
    if not torch.equal(*outputs):
        raise CheckpointError("reloaded by transformers, the drafter gives another output", where=str(out))
    return {"tensors": len(mine.state_dict()), "parameters": sum(p.numel() for p in mine.parameters())}
