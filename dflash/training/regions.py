"""The closed set of compiled graphs, and the drafter's forward pass made of them.

Five functions are compiled, once a bucket each or a few times: a target layer (forward), fusion, a draft layer and
scoring (forward and backward), and the optimizer's update. Layers share graphs, because their weights come in as
arguments; everything between the regions is cheap and stays eager.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import embedding, linear, scaled_dot_product_attention, silu
from transformers import Qwen3Config

from dflash.compilation.gate import CompileGate
from dflash.model.cross_entropy import (
    Teacher,
    Weigh,
    linear_cross_entropy,
    rows_of_piece,
    score_piece,
    score_taught,
)
from dflash.model.draft import DFlashDraftModel, Rope, rotate
from dflash.model.loss import accepted, dpace_weights, labels_of
from dflash.model.mask import context_ranges, dense_mask
from dflash.model.target import run_layer
from dflash.model.tiles import Tiles, tiles_of
from dflash.model.weights import DraftWeights, LayerWeights
from dflash.training.batches import MicroBatch, sent
from dflash.training.optimizer import adamw


class Shape(NamedTuple):
    """What a graph of the drafter is specialised on besides the shapes of its tensors."""

    block: int
    head_dim: int
    eps: float


def rms_norm(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As transformers' Qwen3RMSNorm, which computes in float32 whatever the dtype."""
    wide = states.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(states.dtype)


def fuse(shape: Shape, fc: Tensor, norm: Tensor, features: Tensor) -> Tensor:
    """`DFlashDraftModel.fuse`, its weights as arguments."""
    return rms_norm(linear(features, fc), norm, shape.eps)


def draft_layer(
    shape: Shape,
    weights: LayerWeights,
    block: Tensor,
    rope: Rope,
    context: Tensor,
    context_rope: Rope,
    mask: Tensor | Tiles,
    last_norm: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """One layer over its own projection of the fused context (R, S, H); with `causal` blocks, as `mask` is then made.

    `block` is (R, A * block, H); for the first layer (R, A, 2, H), the embeddings of the anchor and of the mask token,
    which all other slots begin with: their projections are made once an anchor. The last layer, told by the drafter's
    `last_norm`, gives the normed states of the trained slots only, (R, A * (block - 1), H).
    """
    projected = linear(rms_norm(block, weights.input_norm, shape.eps), weights.qkv)
    if block.ndim == 4:
        block, projected = _spread(block, shape.block), _spread(projected, shape.block)
    heads = weights.output.shape[1]
    pairs = (weights.qkv.shape[0] - heads) // 2
    query, key, value = _heads(projected, shape.head_dim, (heads, pairs, pairs))
    context_key, context_value = _heads(linear(context, weights.qkv[heads:]), shape.head_dim, (pairs, pairs))
    query = rotate(rms_norm(query, weights.q_norm, shape.eps).transpose(1, 2), rope)
    keys = torch.cat(
        (
            rotate(rms_norm(context_key, weights.k_norm, shape.eps).transpose(1, 2), context_rope),
            rotate(rms_norm(key, weights.k_norm, shape.eps).transpose(1, 2), rope),
        ),
        dim=2,
    )
    values = torch.cat((context_value, value), dim=1).transpose(1, 2)
    mixed = _attend(query, keys, values, mask, shape.block, causal).transpose(1, 2).flatten(2)
    if last_norm is not None:
        block, mixed = _trained(block, shape.block), _trained(mixed, shape.block)
    block = block + linear(mixed, weights.output)
    opened = rms_norm(block, weights.post_norm, shape.eps)
    block = block + linear(silu(linear(opened, weights.gate)) * linear(opened, weights.up), weights.down)
    return block if last_norm is None else rms_norm(block, last_norm, shape.eps)


def _spread(pair: Tensor, block: int) -> Tensor:
    """(R, A, 2, N), an anchor's and a mask's -> (R, A * block, N), the anchor's and then the mask's again and again."""
    return torch.cat((pair[:, :, :1], pair[:, :, 1:].expand(-1, -1, block - 1, -1)), dim=2).flatten(1, 2)


def _heads(projected: Tensor, head_dim: int, widths: tuple[int, ...]) -> list[Tensor]:
    """(R, N, sum of widths) -> for each width (R, N, heads, D)."""
    return [part.unflatten(-1, (-1, head_dim)) for part in projected.split(widths, dim=-1)]


def _trained(states: Tensor, block: int) -> Tensor:
    return states.unflatten(1, (-1, block))[:, :, 1:].flatten(1, 2)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | Tiles, block: int, causal: bool) -> Tensor:
    """Attention of (R, heads, Q, D) over (R, kv heads, S + Q, D)."""
    if isinstance(mask, Tensor):
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    tiled = mask.block_mask(key.shape[2] - query.shape[2], block, causal)
    mixed = flex_attention(query, key, value, block_mask=tiled, enable_gqa=True)
    assert isinstance(mixed, Tensor)
    return mixed


class Regions:
    """The compiled functions of one process, shared by its workers."""

    def __init__(self, gate: CompileGate, config: Qwen3Config, *, taught: bool = False) -> None:
        """`config` is the drafter's; `taught` is whether a part of the loss is the target's distribution."""
        shape = Shape(config.block_size, config.head_dim, config.rms_norm_eps)
        self.target_layer = gate.compile(run_layer, name="target_layer")
        self.fuse = gate.compile(partial(fuse, shape), name="fuse")
        self.draft_layer = gate.compile(partial(draft_layer, shape), name="draft_layer")
        self.score = gate.compile(score_taught if taught else score_piece, name="score")
        self.update = gate.compile(adamw, name="update")


@dataclass(frozen=True)
class Labels:
    """What a micro-batch asks of the drafter, all (R * A, block - 1), how many slots are valid, and what the step's
    loss is divided by: the sum over ranks and micro-batches."""

    tokens: Tensor
    valid: Tensor
    weights: Tensor
    count: int
    share: Tensor

    def to(self, device: torch.device) -> Labels:
        """The same on `device`."""
        tokens, valid, weights = (sent(part, device) for part in (self.tokens, self.valid, self.weights))
        return replace(self, tokens=tokens, valid=valid, weights=weights)

    def scaled(self, factor: Tensor) -> Labels:
        """The same with all weights times the scalar `factor`."""
        return replace(self, weights=self.weights * factor)


def labels(batch: MicroBatch, decay: Tensor | None, block: int) -> Labels:
    """Labels, validity and weights; `decay` (block - 1,) are the slots' weights, all alike if it is None. The loss is
    divided by the sum of weights, and without a decay by the number of blocks that ask for anything: D-PACE's weights
    are a loss of tokens a block, which dividing by their own sum would undo (SpecForge#828).

    Made where the batch is: a count that a GPU would have to be waited for is best made before the batch goes there.
    """
    tokens, valid = labels_of(batch.tokens, batch.trainable, batch.documents, batch.anchors, block)
    tokens, valid = tokens.flatten(0, 1), valid.flatten(0, 1)
    weights = valid.float() if decay is None else valid * decay
    share = (valid.any(-1) if decay is None else weights).sum(dtype=torch.double)
    return Labels(tokens, valid, weights, int(valid.sum()), share)


@dataclass(frozen=True)
class Outcome:
    """A forward pass: the weighted loss sum (scalar, with its graph), right slots and accepted tokens a block."""

    loss: Tensor
    correct: Tensor
    accepted: Tensor


class Drafting:
    """The drafter's training forward pass on one device: frozen embedding and head, trained draft."""

    def __init__(
        self,
        draft: DFlashDraftModel,
        weights: DraftWeights,
        token_embedding: Tensor,
        head: Tensor,
        regions: Regions,
        dpace: float | None = None,
        kl: float = 0.0,
    ) -> None:
        """`weights` are those of `draft`; `token_embedding` and `head` (V, H) are the target's. With `dpace`, D-PACE's
        alpha, the drafter's own confidence weighs the slots, beside the weights of their labels. `kl` is the share of
        the loss that is the divergence from the target's distribution; `regions` are `taught` then."""
        self._dpace = dpace
        self._share = torch.tensor(kl, device=head.device) if kl else None
        self._draft, self._weights, self._regions = draft, weights, regions
        self._embedding, self._head = token_embedding, head

    def __call__(self, batch: MicroBatch, features: Tensor, wanted: Labels) -> Outcome:
        """Draft all blocks of `batch` from `features`, (R, S, K * H), or (R, S, (K + 1) * H) with `kl`: the last H are
        what the target's LM head reads."""
        block, weights, regions = self._draft.block_size, self._weights, self._regions
        length = batch.tokens.shape[1]
        captured, last = features.split((weights.fc.shape[1], features.shape[-1] - weights.fc.shape[1]), dim=-1)
        context = regions.fuse(weights.fc, weights.hidden_norm, captured)
        anchors = batch.anchors.clamp(min=0)
        offsets = torch.arange(block, device=anchors.device)
        positions = (batch.positions.gather(1, anchors)[..., None] + offsets).flatten(1)
        first = batch.tokens.gather(1, anchors)
        pair = torch.stack((first, torch.full_like(first, self._draft.mask_token_id)), dim=-1)
        states = embedding(pair, self._embedding)
        rope, context_rope = self._draft.rope(states, positions), self._draft.rope(states, batch.positions)
        masks, windows = {}, self._draft.windows
        for window in set(windows):
            ranges, causal = context_ranges(batch.anchors, batch.positions, block, window), window is not None
            make = tiles_of if anchors.is_cuda else dense_mask
            masks[window] = make(ranges, length, block, causal)
        depth = len(weights.layers)
        for index, (layer, window) in enumerate(zip(weights.layers, windows, strict=True)):
            norm, causal = weights.norm if index == depth - 1 else None, window is not None
            states = regions.draft_layer(layer, states, rope, context, context_rope, masks[window], norm, causal)
        tokens, valid = wanted.tokens.flatten(), wanted.valid.flatten()
        piece = rows_of_piece(len(tokens))
        # Slots that are not valid are skipped, but for as many as fill up the last piece.
        rows = torch.argsort((~valid).int(), stable=True)[: -(-wanted.count // piece) * piece]
        given = (states.flatten(0, 1), self._head, tokens, wanted.weights.flatten(), rows, regions.score)
        loss, right = linear_cross_entropy(*given, self._weigh(wanted.valid), self._teacher(last, anchors))
        correct = right.view_as(wanted.valid)
        return Outcome(loss, correct, accepted(correct, wanted.valid))

    def _teacher(self, last: Tensor, anchors: Tensor) -> Teacher | None:
        """The target, whose state at a position speaks of the token behind it: slot k's is that at anchor + k - 1."""
        if self._share is None:
            return None
        rows, length, _ = last.shape
        places = anchors[..., None] + torch.arange(self._draft.block_size - 1, device=anchors.device)
        starts = torch.arange(0, rows * length, length, device=anchors.device)[:, None, None]
        return Teacher(last.flatten(0, 1), (places.clamp(max=length - 1) + starts).flatten(), self._share)

    def _weigh(self, valid: Tensor) -> Weigh | None:
        alpha = self._dpace
        if alpha is None:
            return None
        return lambda losses: dpace_weights(losses.view_as(valid), valid, alpha).flatten()
