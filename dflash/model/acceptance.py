"""Which drafted tokens the target accepts: speculative sampling (arXiv 2211.17192, algorithm 1), one block at a time.

A drafter proposes D tokens, each drawn from a distribution q of its own; the target gives D + 1 distributions p, one
for each drafted token and one for what follows them all. However bad q is, what comes out is distributed as p. V is
the size of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature) (N, V), in float32 or better; temperature 0 is its limit, all on the argmax."""
    if temperature == 0:
        return one_hot(logits.argmax(-1), logits.shape[-1]).float()
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return (wide / temperature).softmax(-1)


def draw(distributions: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One token (N,) from each of the distributions (N, V), which need not be normalised."""
    return torch.multinomial(distributions, 1, generator=generator)[:, 0]


def verify(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator | None = None) -> tuple[int, Tensor]:
    """How many of the `drafted` tokens (D,) are accepted, and the token (1,) that the target says after those.

    `q` (D, V) are the distributions that `drafted` was drawn from, `p` (D + 1, V) those of the target, each given the
    drafted tokens before it. Token x is accepted with probability min(1, p(x) / q(x)); the first that is not is
    replaced by one from max(p - q, 0), normalised; after all D comes one from the last p.
    """
    at_draft = drafted[:, None]
    threshold = torch.rand(len(drafted), generator=generator, device=drafted.device, dtype=q.dtype)
    accepted = threshold * q.gather(1, at_draft)[:, 0] < p[:-1].gather(1, at_draft)[:, 0]
    count = int(accepted.int().cumprod(0).sum())
    rest = p[count]
    if count < len(drafted):
        missing = (rest - q[count]).clamp(min=0)
        # Where p and q differ by rounding alone, a token can be refused with nothing missing from q anywhere.
        rest = missing if missing.any() else rest
    return count, draw(rest[None], generator)
