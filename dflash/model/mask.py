"""Which key a drafted token may look at: the one definition both attention backends are built from.

A row holds S context tokens, packed from several documents, and A blocks of `block` drafted tokens. Queries are
the drafted tokens (A * block of them), keys are [S context | A * block drafted]. A query sees

* context of its own document, strictly before its anchor (the anchor's hidden state is not there at inference),
* its own block, in both directions,
* nothing else. The block of an unused anchor slot sees only itself: a row of the mask that is False everywhere
  turns a softmax into NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor


def visible(query: Tensor, key: Tensor, *, anchors: Tensor, documents: Tensor, block: int) -> Tensor:
    """Whether drafted token `query` sees `key`; index tensors that broadcast against each other.

    `anchors` (A,) are row positions, -1 for an unused slot; `documents` (S,) are document ids, -1 for padding.
    """
    length = documents.shape[0]
    slot = query // block
    anchor = anchors[slot]
    column = key.clamp(max=length - 1)
    same_document = documents[column] == documents[anchor.clamp(min=0)]
    context = (key < length) & (column < anchor) & same_document
    own_block = (key >= length) & ((key - length) // block == slot)
    return context | own_block


def dense_mask(anchors: Tensor, documents: Tensor, block: int) -> Tensor:
    """The mask written out: bool (B, 1, A * block, S + A * block) from `anchors` (B, A), `documents` (B, S)."""
    drafted = anchors.shape[1] * block
    query = torch.arange(drafted, device=anchors.device)[:, None]
    key = torch.arange(documents.shape[1] + drafted, device=anchors.device)[None, :]
    rows = [
        visible(query, key, anchors=row_anchors, documents=row_documents, block=block)
        for row_anchors, row_documents in zip(anchors, documents, strict=True)
    ]
    return torch.stack(rows)[:, None]


def document_mask(documents: Tensor) -> Tensor:
    """Causal attention inside each document: bool (B, 1, S, S) from `documents` (B, S); a token sees itself."""
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return (causal & (documents[:, :, None] == documents[:, None, :]))[:, None]
