"""Which key a drafted token may look at: the one definition both attention backends are built from.

A row holds S context tokens, packed from several documents, and A blocks of `block` drafted tokens. Queries are
the drafted tokens (Q = A * block of them), keys are [S context | Q drafted]. A query sees

* context of its own document, strictly before its anchor (the anchor's hidden state is not there at inference),
* its own block, in both directions,
* in a sliding layer, of these only the `window` positions that end with its own: the block is causal there,
* nothing else. The block of an unused anchor slot sees only itself: a row of the mask that is False everywhere
  turns a softmax into NaN.

A document is contiguous in its row, so the context that a query sees is one range of positions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Ranges(NamedTuple):
    """The context that each query sees: positions `start <= key < limit`, both int32 (B, Q)."""

    start: Tensor
    limit: Tensor


def context_ranges(anchors: Tensor, positions: Tensor, block: int, window: int | None = None) -> Ranges:
    """Ranges of all queries, from `anchors` (B, A), -1 for an unused slot, and `positions` (B, S) inside documents.

    `window`, a sliding layer's, is at least `block`: then no query's window begins after its anchor.
    """
    used = anchors.clamp(min=0)
    start = (used - positions.gather(1, used)).masked_fill(anchors < 0, 0)
    start, limit = (bound.int().repeat_interleave(block, dim=1) for bound in (start, used))
    if window is not None:
        offset = torch.arange(start.shape[1], dtype=torch.int32, device=start.device) % block
        start = torch.maximum(start, limit + offset - (window - 1))
    return Ranges(start, limit)


def visible(
    query: Tensor, key: Tensor, start: Tensor, limit: Tensor, *, length: int, block: int, causal: bool = False
) -> Tensor:
    """Whether drafted token `query`, whose range is [start, limit), sees `key`; tensors that broadcast. Blocks are
    `causal` in sliding layers."""
    context = (key >= start) & (key < limit)
    own_block = (key - length) // block == query // block
    if causal:
        own_block = own_block & (key - length <= query)
    return torch.where(key < length, context, own_block)


def dense_mask(ranges: Ranges, length: int, block: int, causal: bool = False) -> Tensor:
    """The mask written out: bool (B, 1, Q, S + Q), S = `length`."""
    drafted = ranges.start.shape[1]
    query = torch.arange(drafted, device=ranges.start.device)[:, None]
    key = torch.arange(length + drafted, device=ranges.start.device)
    bounds = (bound[:, None, :, None] for bound in ranges)
    return visible(query, key, *bounds, length=length, block=block, causal=causal)


def document_mask(documents: Tensor) -> Tensor:
    """Causal attention inside each document: bool (B, 1, S, S) from `documents` (B, S); a token sees itself."""
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return (causal & (documents[:, :, None] == documents[:, None, :]))[:, None]
