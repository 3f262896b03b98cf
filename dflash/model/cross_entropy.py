"""Cross-entropy behind a frozen LM head, with the gradient of the hidden states made in the forward pass.

The head takes no gradient, so all that a backward pass could want of the logits (N, V) is the gradient of N hidden
states. It is made where the logits are, in pieces of rows, and the logits of no more than one piece exist at a time:
with a vocabulary of 151,936 those of 512 blocks of 16 are 2.5 GB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

PIECE = 4096
"""Rows of logits that are in memory at once, at most. Fewer make the matrix products slower, and more no faster."""

Scores = tuple[Tensor, Tensor, Tensor]
Piece = Callable[[Tensor, Tensor, Tensor, Tensor], Scores]
Weigh = Callable[[Tensor], Tensor]


def rows_of_piece(total: int) -> int:
    """Rows in each of the equal pieces that `total` rows are cut into: the most that are at most `PIECE`."""
    return total // next(count for count in range(-(-total // PIECE), total + 1) if total % count == 0)


def score_piece(hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor) -> Scores:
    """Losses (N,) -log p(label), whether each label was the best token (N,), and the gradient of the weighted sum of
    losses by `hidden` (N, H). `head` is (V, H); `labels` and `weights` (N,)."""
    logits = hidden @ head.T
    if logits.is_cuda:
        losses, right = _in_place(logits, labels, weights)
        return losses, right, logits @ head
    scores = logits.float()
    normal = scores.logsumexp(-1)
    losses = normal - scores.gather(1, labels[:, None]).squeeze(1)
    chosen = torch.arange(scores.shape[1], device=scores.device) == labels[:, None]
    slopes = ((scores - normal[:, None]).exp() - chosen.float()) * weights[:, None]
    return losses, scores.argmax(-1) == labels, slopes.to(logits.dtype) @ head


def linear_cross_entropy(
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    weights: Tensor,
    rows: Tensor,
    score: Piece = score_piece,
    weigh: Weigh | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum over `rows` of weight x -log p(label), a scalar, and whether each row's label was the best token (N,),
    False for rows that are not in `rows`.

    `hidden` (N, H), `labels` and `weights` (N,); `rows` are indices into them, without repetition and as many as one or
    more pieces have (`rows_of_piece(N)` each). `weigh` makes factors (N,) of the weights from the losses (N,); they
    count as constants. Gradients are those of `hidden` and `weights`.
    """
    arguments = (hidden, head, labels, weights, rows, score, weigh)
    loss, right = _LinearCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
    return loss, right


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        labels: Tensor,
        weights: Tensor,
        rows: Tensor,
        score: Piece,
        weigh: Weigh | None,
    ) -> tuple[Tensor, Tensor]:
        slopes, losses = torch.zeros_like(hidden), torch.zeros_like(weights)
        right = torch.zeros_like(labels, dtype=torch.bool)
        for some in rows.split(rows_of_piece(len(labels))):
            lost, hit, slope = score(hidden[some], head, labels[some], weights[some])
            losses.index_copy_(0, some, lost.to(losses.dtype))
            right.index_copy_(0, some, hit)
            slopes.index_copy_(0, some, slope)
        if weigh is not None:
            factors = weigh(losses)
            losses *= factors
            slopes *= factors[:, None]
        ctx.save_for_backward(slopes, losses)
        ctx.mark_non_differentiable(right)
        return (losses * weights).sum(), right

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        slopes, losses = ctx.saved_tensors
        return slopes * slope.to(slopes.dtype), None, None, losses * slope, None, None, None


def _in_place(logits: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and hits of `logits`, which are replaced by the gradient of the weighted sum: one reading pass and one
    that writes, where a compiled softmax makes four."""
    from dflash.model.kernels import cross_entropy

    losses = torch.empty_like(weights, dtype=torch.float32)
    right = torch.empty_like(labels, dtype=torch.bool)
    cross_entropy[(len(logits),)](logits, labels, weights, losses, right, logits.shape[1], TILE=4096, num_warps=8)
    return losses, right
