"""Cross-entropy, and divergence from a teacher, behind a frozen LM head: the gradient of the hidden states is made in
the forward pass.

The head takes no gradient, so all that a backward pass could want of the logits (N, V) is the gradient of N hidden
states. It is made where the logits are, in pieces of rows, and the logits of no more than one piece exist at a time:
with a vocabulary of 151,936 those of 512 blocks of 16 are 2.5 GB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

PIECE = 4096
"""Rows of logits that are in memory at once, at most. Fewer make the matrix products slower, and more no faster."""

Scores = tuple[Tensor, Tensor, Tensor]
Piece = Callable[..., tuple[Tensor, ...]]
Weigh = Callable[[Tensor], Tensor]


class Teacher(NamedTuple):
    """Whose distribution is to be learned, as far as a scalar `share` of the loss: the one that the same head makes of
    `states` (M, H), for each row at one of `places` (N,) among them."""

    states: Tensor
    places: Tensor
    share: Tensor


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


def score_taught(
    hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor, taught: Tensor, share: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `score_piece`, with losses (1 - share) x -log p(label) + share x KL(teacher || p) (Hinton et al. 2015, arXiv
    1503.02531, at temperature 1), and last -log p(label) alone (N,). `taught` (N, H) is what the teacher's
    distributions are made of, `share` a scalar."""
    logits, wishes = hidden @ head.T, taught @ head.T
    if logits.is_cuda:
        losses, right, surprises = _taught_in_place(logits, labels, weights, wishes, share)
        return losses, right, logits @ head, surprises
    scores, wanted = logits.float(), wishes.float().log_softmax(-1)
    normal = scores.logsumexp(-1)
    surprises = normal - scores.gather(1, labels[:, None]).squeeze(1)
    divergences = (wanted.exp() * (wanted - scores + normal[:, None])).sum(-1)
    chosen = torch.arange(scores.shape[1], device=scores.device) == labels[:, None]
    asked = chosen.float() + share * (wanted.exp() - chosen.float())
    slopes = ((scores - normal[:, None]).exp() - asked) * weights[:, None]
    losses = surprises + share * (divergences - surprises)
    return losses, scores.argmax(-1) == labels, slopes.to(logits.dtype) @ head, surprises


def linear_cross_entropy(
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    weights: Tensor,
    rows: Tensor,
    score: Piece = score_piece,
    weigh: Weigh | None = None,
    teacher: Teacher | None = None,
) -> tuple[Tensor, Tensor]:
    """The sum over `rows` of weight x -log p(label), a scalar, and whether each row's label was the best token (N,),
    False for rows that are not in `rows`. With a `teacher`, `score` is `score_taught`, and so is the loss.

    `hidden` (N, H), `labels` and `weights` (N,); `rows` are indices into them, without repetition and as many as one or
    more pieces have (`rows_of_piece(N)` each). `weigh` makes factors (N,) of the weights from -log p(label) (N,); they
    count as constants. Gradients are those of `hidden` and `weights`.
    """
    arguments = (hidden, head, labels, weights, rows, score, weigh, teacher)
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
        teacher: Teacher | None,
    ) -> tuple[Tensor, Tensor]:
        slopes, losses, surprises = torch.zeros_like(hidden), torch.zeros_like(weights), torch.zeros_like(weights)
        right = torch.zeros_like(labels, dtype=torch.bool)
        # Of no rows there would be one piece, which is empty: a shape that is in no closed set.
        for some in rows.split(rows_of_piece(len(labels))) if len(rows) else ():
            taught = () if teacher is None else (teacher.states[teacher.places[some]], teacher.share)
            lost, hit, slope, *surprised = score(hidden[some], head, labels[some], weights[some], *taught)
            surprises.index_copy_(0, some, (surprised or [lost])[0].to(surprises.dtype))
            losses.index_copy_(0, some, lost.to(losses.dtype))
            right.index_copy_(0, some, hit)
            slopes.index_copy_(0, some, slope)
        if weigh is not None:
            factors = weigh(surprises)
            losses *= factors
            slopes *= factors[:, None]
        ctx.save_for_backward(slopes, losses)
        ctx.mark_non_differentiable(right)
        return (losses * weights).sum(), right

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        slopes, losses = ctx.saved_tensors
        return slopes * slope.to(slopes.dtype), None, None, losses * slope, None, None, None, None


def _in_place(logits: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and hits of `logits`, which are replaced by the gradient of the weighted sum: one reading pass and one
    that writes, where a compiled softmax makes four."""
    from dflash.model.kernels import cross_entropy

    losses = torch.empty_like(weights, dtype=torch.float32)
    right = torch.empty_like(labels, dtype=torch.bool)
    cross_entropy[(len(logits),)](logits, labels, weights, losses, right, SIZE=logits.shape[1], TILE=4096, num_warps=8)
    return losses, right


def _taught_in_place(
    logits: Tensor, labels: Tensor, weights: Tensor, wishes: Tensor, share: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`_in_place` with a teacher's logits `wishes`; last is -log p(label)."""
    from dflash.model.kernels import taught_cross_entropy

    losses, surprises = (torch.empty_like(weights, dtype=torch.float32) for _ in range(2))
    right = torch.empty_like(labels, dtype=torch.bool)
    given = (logits, labels, weights, wishes, share, losses, surprises, right)
    taught_cross_entropy[(len(logits),)](*given, SIZE=logits.shape[1], TILE=4096, num_warps=8)
    return losses, right, surprises
