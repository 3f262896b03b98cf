"""The decay-weighted cross-entropy of a drafted block, and what it says about acceptance.

Slot k of a block predicts the token at row position anchor + k; slot 0 is the anchor itself and is not trained.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def slot_decay(block: int, gamma: float) -> Tensor:
    """Weights (block - 1,) of slots 1.. : w_k = exp(-(k - 1) / gamma)."""
    return torch.exp(-torch.arange(block - 1, dtype=torch.float32) / gamma)


def labels_of(
    tokens: Tensor, trainable: Tensor, documents: Tensor, anchors: Tensor, block: int
) -> tuple[Tensor, Tensor]:
    """Labels and their validity, both (B, A, block - 1), of slots 1.. of each anchor.

    `tokens`, `trainable` (bool) and `documents` are (B, S); `anchors` (B, A), -1 for an unused slot. A slot is
    valid when its anchor is used and its token lies in the row, in the anchor's document, and is trainable.
    """
    rows, length = tokens.shape
    position = anchors[..., None] + torch.arange(1, block, device=anchors.device)
    inside = position.clamp(0, length - 1).flatten(1)
    shape = (rows, anchors.shape[1], block - 1)
    own = documents.gather(1, anchors.clamp(min=0))[..., None]
    valid = (
        (anchors[..., None] >= 0)
        & (position < length)
        & (documents.gather(1, inside).view(shape) == own)
        & trainable.gather(1, inside).view(shape)
    )
    return tokens.gather(1, inside).view(shape), valid


def block_loss(hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted sum of cross-entropies, a scalar, and whether each slot's best token was right (N, slots).

    `hidden` (N, block, H) are the drafted states of N anchors, `head` (V, H) the target's LM head, `labels` and
    `weights` (N, block - 1). Weights hold the decay, and 0 where a slot is not valid; the caller divides by the
    weights' sum over all ranks, so that the loss of a step does not depend on how its rows were dealt.
    """
    logits = (hidden[:, 1:] @ head.T).float()
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(weights)
    return (losses * weights).sum(), logits.argmax(-1) == labels


def accepted(correct: Tensor, valid: Tensor) -> Tensor:
    """Tokens (N,) that one round of greedy decoding would gain from each block: right slots in a row, plus one."""
    return 1 + (correct & valid).int().cumprod(-1).sum(-1)
