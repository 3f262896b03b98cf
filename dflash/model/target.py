"""The target: a causal LM in transformers' layout, run as far as its last captured layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from dflash.errors import UsageError
from dflash.model.mask import document_mask
from dflash.model.parallel import spread
from dflash.model.stored import can_not_be_loaded, fill, refuse_missing

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


def load_target(
    folder: Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> PreTrainedModel:
    """The whole target with frozen weights, in evaluation mode.

    Raises:
        UsageError: `folder` does not hold a causal LM, or not all of its weights.
    """
    target_config(folder)
    model: PreTrainedModel
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, attn_implementation="sdpa", output_loading_info=True
        )
    except Exception as failure:  # safetensors has an exception class of its own
        raise can_not_be_loaded(folder, failure) from failure
    refuse_missing(report["missing_keys"], folder)
    return model.to(device).requires_grad_(False).eval()


def load_layers(
    folder: Path,
    layers: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    *,
    norm: bool = False,
    mesh: DeviceMesh | None = None,
) -> PreTrainedModel:
    """The embedding and the first `layers` of a target, frozen, in evaluation mode, straight to `device`: all that
    `Capture` runs, with the last norm or without. There is no LM head. What is not there is not read; with a `mesh`,
    of whose processes each calls this, neither is what the others hold.

    Raises:
        UsageError: `folder` does not hold a causal LM of this build, or not all of these weights.
    """
    model = _unfilled(folder, dtype)
    _cut(model, layers, norm=norm)
    if mesh is not None:
        spread(model, mesh, folder)
    fill(model, folder, device, dtype)
    return model.requires_grad_(False).eval()


def _cut(model: PreTrainedModel, layers: int, *, norm: bool) -> None:
    """Leave the embedding, the first `layers`, and the last norm if it is wanted."""
    inner = model.base_model
    inner.layers, inner.norm = inner.layers[:layers], inner.norm if norm else nn.Identity()
    model.set_output_embeddings(nn.Identity())
    model.all_tied_weights_keys = {}  # there is no head to tie


def load_ends(folder: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> Ends:
    """A target's embedding and LM head, straight to `device`; nothing else is read.

    Raises:
        UsageError: `folder` does not hold a causal LM of this build, or not these weights.
    """
    model = _unfilled(folder, dtype)
    model.base_model.layers, model.base_model.norm = nn.ModuleList(), nn.Identity()
    fill(model, folder, device, dtype)
    return Ends.of(model)


def _unfilled(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The target on the meta device."""
    config = target_config(folder)
    model: PreTrainedModel
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    except Exception as failure:  # it may be no causal LM, or one whose sizes do not fit each other
        raise can_not_be_loaded(folder, failure) from failure
    if absent := [part for part in ("layers", "norm", "rotary_emb") if not hasattr(model.base_model, part)]:
        raise UsageError(
            f"a {type(model).__name__} has no {absent[0]}",
            where=str(folder),
            cure="choose a target that is built as Llama and Qwen3 are",
        )
    return model


def blank_target(
    config: PretrainedConfig, device: torch.device, dtype: torch.dtype = torch.float32, layers: int | None = None
) -> PreTrainedModel:
    """A target of this shape with whatever memory holds for weights: enough to compile its graphs, at no cost of
    loading or drawing them. With `layers`, as much of it as `load_layers` would load."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    if layers is not None:
        _cut(model, layers, norm=layers == config.num_hidden_layers)
    model.to_empty(device=device).tie_weights()
    return model.requires_grad_(False).eval()


def window_of(config: PretrainedConfig, layers: int) -> int | None:
    """How many tokens back the first `layers` layers of a target see, if one of them does not see all."""
    types = getattr(config, "layer_types", None)
    slides = types is None or "sliding_attention" in types[:layers]
    return getattr(config, "sliding_window", None) if slides else None


class Ends(NamedTuple):
    """What a drafter takes over from its target, frozen: token embedding and LM head, both (V, H)."""

    embedding: Tensor
    head: Tensor

    @staticmethod
    def of(target: PreTrainedModel) -> Ends:
        """Those of `target`, detached: a parameter and a tensor are two graphs. One tensor where they are tied."""
        embedding, head = target.get_input_embeddings().weight, target.get_output_embeddings().weight
        kept = embedding.detach()
        return Ends(kept, kept if head is embedding else head.detach())

    def to(self, device: torch.device, dtype: torch.dtype) -> Ends:
        """The same on `device`; one tensor where the two are one."""
        embedding = self.embedding.to(device, dtype)
        return Ends(embedding, embedding if self.head is self.embedding else self.head.to(device, dtype))


class Capture:
    """The part of a target that a target worker runs: embedding and layers up to the last captured one, or all of
    them and the last norm."""

    def __init__(
        self, model: PreTrainedModel, layer_ids: Sequence[int], layer: Layer = run_layer, *, last: bool = False
    ) -> None:
        """With `last`, what the LM head reads comes behind the captured states."""
        self.layer_ids = tuple(layer_ids)
        self._embed = model.get_input_embeddings()
        self._rotary = model.model.rotary_emb
        self._layers = list(model.model.layers)[: None if last else max(layer_ids) + 1]
        self._last: list[nn.Module] = [model.model.norm] if last else []
        self._run = layer

    def to(self, device: torch.device) -> Capture:
        """Move this part, and nothing else of the target, to `device`."""
        for module in (self._embed, self._rotary, *self._layers, *self._last):
            module.to(device)
        return self

    @torch.no_grad()
    def features(self, tokens: Tensor, positions: Tensor, documents: Tensor) -> Tensor:
        """Captured hidden states (B, S, K * H), concatenated on channels, of packed rows; with `last`, the normed ones
        behind the last layer too, (B, S, (K + 1) * H).

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
        return torch.cat([captured[index] for index in self.layer_ids] + [norm(hidden) for norm in self._last], dim=-1)


def refuse_unlike(model: PreTrainedModel, folder: Path) -> None:
    """Raise UsageError if `Capture` does not give the hidden states that the model gives by itself, on one short row:
    what a model does between its layers (scales, rotary embeddings by layer) is not in them."""
    positions = torch.arange(PROBE, device=model.device)[None]
    tokens, layers = positions % model.config.vocab_size, len(model.base_model.layers)
    cure = "choose a target that is built as Llama and Qwen3 are"
    try:
        found = Capture(model, range(layers), last=True).features(tokens, positions, torch.zeros_like(positions))
    except torch.OutOfMemoryError:
        raise
    except Exception as failure:
        what = f"the layers of a {type(model).__name__} can not be run one by one ({type(failure).__name__}: {failure})"
        raise UsageError(what.splitlines()[0], where=str(folder), cure=cure) from failure
    places = [*(f"layer {index}" for index in range(layers)), "the last norm"]
    for place, one, other in zip(places, found.chunk(len(places), dim=-1), _own_states(model, tokens), strict=True):
        apart = float((one.float() - other.float()).norm() / other.float().norm())
        if not apart < APART:
            raise UsageError(
                f"a {type(model).__name__} does more than run its layers: {place} is {apart:.1%} off",
                where=str(folder),
                cure=cure,
            )


@torch.no_grad()
def _own_states(model: PreTrainedModel, tokens: Tensor) -> list[Tensor]:
    """The output of each layer and of the last norm in the model's own forward pass. Not by `output_hidden_states`:
    that leaves hooks in the layers for good, which Dynamo can not trace."""
    states: list[Tensor] = []

    def keep(layer: nn.Module, arguments: object, output: Tensor | tuple[Tensor, ...]) -> None:
        states.append(output if isinstance(output, Tensor) else output[0])

    hooks = [layer.register_forward_hook(keep) for layer in model.base_model.layers]
    try:
        states.append(model.base_model(tokens, use_cache=False).last_hidden_state)
    finally:
        for hook in hooks:
            hook.remove()
    return states


PROBE, APART = 17, 0.05
"""Tokens of the row that is compared, and the relative error from which states are not the same: bfloat16 alone makes
one of some 1e-2."""
