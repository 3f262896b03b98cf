"""The closed set of compiled graphs, and the drafter's forward pass made of them.

Four functions are compiled, each once a bucket: a target layer (forward), fusion, a draft layer and scoring
(forward and backward). Layers share one graph, because they come in as an argument; everything between the
regions is cheap and stays eager.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dflash.compilation.gate import CompileGate
from dflash.model.draft import DFlashDecoderLayer, DFlashDraftModel, Rope
from dflash.model.loss import accepted, block_loss, labels_of
from dflash.model.mask import dense_mask
from dflash.model.target import run_layer
from dflash.training.batches import MicroBatch


def fuse(fc: nn.Linear, norm: nn.Module, features: Tensor) -> Tensor:
    """`DFlashDraftModel.fuse` with its two modules as arguments."""
    fused: Tensor = norm(fc(features))
    return fused


def draft_layer(
    layer: DFlashDecoderLayer, block: Tensor, rope: Rope, context: Tensor, context_rope: Rope, mask: Tensor
) -> Tensor:
    """One layer over its own projection of the fused context (B, S, H)."""
    drafted: Tensor = layer(block, rope, layer.self_attn.key_value(context, context_rope), mask)
    return drafted


def score(norm: nn.Module, drafted: Tensor, head: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Final norm, LM head and loss; `drafted` (B, A * block, H), `labels` and `weights` (B * A, block - 1)."""
    block = labels.shape[1] + 1
    return block_loss(norm(drafted).view(-1, block, drafted.shape[-1]), head, labels, weights)


class Regions:
    """The compiled functions of one process, shared by its workers."""

    def __init__(self, gate: CompileGate) -> None:
        self.target_layer = gate.compile(run_layer, name="target_layer")
        self.fuse = gate.compile(fuse, name="fuse")
        self.draft_layer = gate.compile(draft_layer, name="draft_layer")
        self.score = gate.compile(score, name="score")


@dataclass(frozen=True)
class Labels:
    """What a micro-batch asks of the drafter, all (R * A, block - 1)."""

    tokens: Tensor
    valid: Tensor
    weights: Tensor


def labels(batch: MicroBatch, decay: Tensor) -> Labels:
    """Labels, validity and weights; `decay` (block - 1,) are the slots' weights."""
    block = len(decay) + 1
    tokens, valid = labels_of(batch.tokens, batch.trainable, batch.documents, batch.anchors, block)
    return Labels(tokens.flatten(0, 1), valid.flatten(0, 1), (valid * decay).flatten(0, 1))


@dataclass(frozen=True)
class Outcome:
    """A forward pass: the weighted loss sum (scalar, with its graph), right slots and accepted tokens a block."""

    loss: Tensor
    correct: Tensor
    accepted: Tensor


class Drafting:
    """The drafter's training forward pass on one device: frozen embedding and head, trained draft."""

    def __init__(self, draft: DFlashDraftModel, embedding: Tensor, head: Tensor, regions: Regions) -> None:
        """`embedding` and `head` (V, H) are the target's."""
        self._draft, self._embedding, self._head, self._regions = draft, embedding, head, regions

    def __call__(self, batch: MicroBatch, features: Tensor, wanted: Labels) -> Outcome:
        """Draft all blocks of `batch` from `features` (R, S, K * H)."""
        draft, regions = self._draft, self._regions
        context = regions.fuse(draft.fc, draft.hidden_norm, features)
        anchors = batch.anchors.clamp(min=0)
        offsets = torch.arange(draft.block_size, device=anchors.device)
        positions = (batch.positions.gather(1, anchors)[..., None] + offsets).flatten(1)
        tokens = torch.full_like(positions, draft.mask_token_id).unflatten(1, (-1, draft.block_size))
        tokens[..., 0] = batch.tokens.gather(1, anchors)
        # The first layer's input takes a gradient that nobody uses, so that all layers are one graph, not two.
        block = self._embedding[tokens.flatten(1)].requires_grad_()
        rope, context_rope = draft.rope(block, positions), draft.rope(block, batch.positions)
        mask = dense_mask(batch.anchors, batch.documents, draft.block_size)
        for layer in draft.layers:
            block = regions.draft_layer(layer, block, rope, context, context_rope, mask)
        loss, correct = regions.score(draft.norm, block, self._head, wanted.tokens, wanted.weights)
        return Outcome(loss, correct, accepted(correct, wanted.valid))
