"""What a drafted block is to say, how much each slot weighs, and what right slots mean for acceptance.

Slot k of a block predicts the token at row position anchor + k; slot 0 is the anchor itself and is not trained.
"""

from __future__ import annotations

import torch
from torch import Tensor


def slot_decay(block: int, gamma: float) -> Tensor:
    """Weights (block - 1,) of slots 1.. : w_k = exp(-(k - 1) / gamma)."""
    return torch.exp(-torch.arange(block - 1, dtype=torch.float32) / gamma)


def dpace_weights(losses: Tensor, valid: Tensor, alpha: float) -> Tensor:
    """D-PACE weights (N, slots) from the drafter's own confidence (arXiv 2605.18810, equations 7 and 8), which take
    the place of a fixed decay.

    With q = exp(-loss) of a slot's label, smoothed to (1 - alpha) q + alpha, the weight of a slot is the sum over it
    and all later slots of the product of smoothed confidences so far: what it contributes to the tokens that a round
    is expected to gain. Slots that are not `valid` weigh nothing and take no part. `losses` and `valid` (N, slots).
    """
    smooth = ((1 - alpha) * torch.exp(-losses) + alpha).masked_fill(~valid, 1.0)
    reached = smooth.cumprod(-1) * valid
    return reached.flip(-1).cumsum(-1).flip(-1) * valid


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


def accepted(correct: Tensor, valid: Tensor) -> Tensor:
    """Tokens (N,) that one round of greedy decoding would gain from each block: right slots in a row, plus one."""
    return 1 + (correct & valid).int().cumprod(-1).sum(-1)
