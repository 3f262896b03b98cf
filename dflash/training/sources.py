"""Where a training's models come from: a folder and a seed, or nowhere, when only their graphs are wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch.distributed.device_mesh import DeviceMesh
from transformers import PretrainedConfig, PreTrainedModel, Qwen3Config

from dflash.model.draft import DFlashDraftModel, capture_layers
from dflash.model.layout import load_draft
from dflash.model.target import Ends, blank_target, load_ends, load_layers, refuse_unlike, target_config
from dflash.training.drafts import blank_draft, fresh_draft


def layers_of(target: PretrainedConfig, features: int | None) -> int:
    """How many layers of a target must run for so many `features`; without them, all."""
    depth: int = target.num_hidden_layers
    return depth if features is None else max(capture_layers(depth, features)) + 1


class Models(Protocol):
    """Gives a worker its models. They may be anywhere: a worker takes what it needs to its device."""

    target_config: PretrainedConfig

    def target(self, device: torch.device, dtype: torch.dtype, mesh: DeviceMesh | None = None) -> PreTrainedModel:
        """The target, for a worker on `device`; what lies behind the last captured layer may be left out. With a
        `mesh`, this process's part of it."""

    def ends(self, device: torch.device, dtype: torch.dtype) -> Ends:
        """The target's embedding and LM head alone."""

    def draft(self, config: Qwen3Config, device: torch.device) -> DFlashDraftModel:
        """The drafter at its beginning, the same for every worker."""


class Real:
    """The target of a model folder, and a drafter whose first weights `seed` decides, or the folder `start`."""

    def __init__(self, folder: Path, seed: int, features: int | None = None, start: Path | None = None) -> None:
        """`features` is the number of captured layers: the target's layers behind the last of them are never read.
        Without it all are, and the last norm.

        Raises:
            UsageError: `folder` is no model folder.
        """
        self.target_config = target_config(folder)
        self._folder, self._seed, self._features, self._start = folder, seed, features, start

    def target(self, device: torch.device, dtype: torch.dtype, mesh: DeviceMesh | None = None) -> PreTrainedModel:
        layers = layers_of(self.target_config, self._features)
        model = load_layers(self._folder, layers, device, dtype, norm=self._features is None, mesh=mesh)
        refuse_unlike(model, self._folder)
        return model

    def ends(self, device: torch.device, dtype: torch.dtype) -> Ends:
        return load_ends(self._folder, device, dtype)

    def draft(self, config: Qwen3Config, device: torch.device) -> DFlashDraftModel:
        if self._start is None:
            return fresh_draft(config, self._seed)
        draft = blank_draft(config, torch.device("cpu"))  # by its own configuration: the block may be another
        draft.load_state_dict(load_draft(self._start).state_dict())
        return draft


class Blank:
    """Models of the right shapes, with whatever memory holds for weights; of the target as much as a worker loads."""

    def __init__(self, target: PretrainedConfig, features: int | None = None) -> None:
        """`features` as for `Real`."""
        self.target_config, self._features = target, features

    def target(self, device: torch.device, dtype: torch.dtype, mesh: DeviceMesh | None = None) -> PreTrainedModel:
        return blank_target(self.target_config, device, dtype, layers_of(self.target_config, self._features))

    def ends(self, device: torch.device, dtype: torch.dtype) -> Ends:
        config = self.target_config
        shape = (config.vocab_size, config.hidden_size)
        embedding = torch.empty(shape, device=device, dtype=dtype)
        return Ends(embedding, embedding if config.tie_word_embeddings else torch.empty_like(embedding))

    def draft(self, config: Qwen3Config, device: torch.device) -> DFlashDraftModel:
        return blank_draft(config, device)


class Random(Blank):
    """As `Blank`, with small random numbers, which nothing overflows. For measuring: how fast a GPU is depends a little
    on what it computes with."""

    def target(self, device: torch.device, dtype: torch.dtype, mesh: DeviceMesh | None = None) -> PreTrainedModel:
        model = super().target(device, dtype)
        model.initialize_weights()
        return model

    def ends(self, device: torch.device, dtype: torch.dtype) -> Ends:
        ends = super().ends(device, dtype)
        ends.embedding.normal_(0, 0.02)
        if ends.head is not ends.embedding:
            ends.head.normal_(0, 0.02)
        return ends

    def draft(self, config: Qwen3Config, device: torch.device) -> DFlashDraftModel:
        draft = super().draft(config, device)
        draft.initialize_weights()
        return draft
