"""The target: a causal LM in transformers' layout, run as far as its last captured layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from dflash.errors import UsageError
from dflash.model.mask import document_mask

Layer = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Run one decoder layer: (layer, hidden (B, S, H), mask (B, 1, S, S), cosines, sines (B, S, D)) -> hidden."""


def run_layer(layer: nn.Module, hidden: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """One decoder layer, called alike for every layer, so that one compiled graph serves them all."""
    output: Tensor = layer(hidden, attention_mask=mask, position_embeddings=(cos, sin))
    return output


def target_config(folder: Path) -> PretrainedConfig:
    """The target's configuration.

    Raises:
        UsageError: `folder` does not hold a model that transformers can read.
    """
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as failure:  # transformers' configurations have exception classes of their own
        reason = str(failure).splitlines()[0]
        raise UsageError(
            f"not a model folder ({reason})",
            where=str(folder),
            cure="name a folder with config.json and safetensors",
        ) from failure


def load_target(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The whole target with frozen weights, in evaluation mode.

    Raises:
        UsageError: `folder` does not hold a causal LM, or not all of its weights: transformers would fill up what is
            missing with random numbers, and a drafter trained against a random LM head learns nothing.
    """
    target_config(folder)
    cure = "copy the model folder again"
    model: PreTrainedModel
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, attn_implementation="sdpa", output_loading_info=True
        )
    except Exception as failure:  # safetensors has an exception class of its own
        reason = str(failure).splitlines()[0]
        raise UsageError(f"the model can not be loaded ({reason})", where=str(folder), cure=cure) from failure
    if missing := sorted(report["missing_keys"]):
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise UsageError(f"the weights lack {missing[0]}{more}", where=str(folder), cure=cure)
    return model.requires_grad_(False).eval()


def blank_target(config: PretrainedConfig, device: torch.device, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A target of this shape with whatever memory holds for weights: enough to compile its graphs, at no cost of
    loading or drawing them."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.to_empty(device=device).tie_weights()
    return model.requires_grad_(False).eval()


class Ends(NamedTuple):
    """What a drafter takes over from its target, frozen: token embedding and LM head, both (V, H)."""

    embedding: Tensor
    head: Tensor

    @staticmethod
    def of(target: PreTrainedModel) -> Ends:
        """Those of `target`, detached: a parameter and a tensor are two graphs."""
        return Ends(target.get_input_embeddings().weight.detach(), target.get_output_embeddings().weight.detach())

    def to(self, device: torch.device, dtype: torch.dtype) -> Ends:
        """The same on `device`; one tensor where the two are one."""
        embedding = self.embedding.to(device, dtype)
        return Ends(embedding, embedding if self.head is self.embedding else self.head.to(device, dtype))


class Capture:
    """The part of a target that a target worker runs: embedding and layers up to the last captured one."""

    def __init__(self, model: PreTrainedModel, layer_ids: Sequence[int], layer: Layer = run_layer) -> None:
        self.layer_ids = tuple(layer_ids)
        self._embed = model.get_input_embeddings()
        self._rotary = model.model.rotary_emb
        self._layers = list(model.model.layers)[: max(layer_ids) + 1]
        self._run = layer

    def to(self, device: torch.device) -> Capture:
        """Move this part, and nothing else of the target, to `device`."""
        for module in (self._embed, self._rotary, *self._layers):
            module.to(device)
        return self

    @torch.no_grad()
    def features(self, tokens: Tensor, positions: Tensor, documents: Tensor) -> Tensor:
        """Captured hidden states (B, S, K * H), concatenated on channels, of packed rows.

        `tokens`, `positions` (counted inside each document) and `documents` are (B, S). A feature is the output
        of its layer, so a document's features do not depend on what shares the row.
        """
        hidden = self._embed(tokens)
        cos, sin = self._rotary(hidden, positions)
        mask = document_mask(documents)
        captured: dict[int, Tensor] = {}
        for index, layer in enumerate(self._layers):
            hidden = self._run(layer, hidden, mask, cos, sin)
            if index in self.layer_ids:
                captured[index] = hidden
        return torch.cat([captured[index] for index in self.layer_ids], dim=-1)
