"""The Triton kernels in Triton's interpreter, which needs no GPU, against the same computed by torch: prints the
largest differences, relative to the largest value, as JSON. A program, for an environment that has Triton."""

from __future__ import annotations

import json
import os

import torch
from torch import Tensor

os.environ["TRITON_INTERPRET"] = "1"

from dflash.model.cross_entropy import score_piece, score_taught
from dflash.model.kernels import cross_entropy, taught_cross_entropy

ROWS, VOCABULARY, WIDTH, SHARE = 5, 9_000, 16, 0.3
"""The vocabulary is more than two of the tiles that a row is read in, and the last of them is not full."""


def apart(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).abs().max() / expected.float().abs().max())


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, taught = (2 * torch.randn(ROWS, WIDTH, generator=generator) for _ in range(2))
    head = torch.randn(VOCABULARY, WIDTH, generator=generator)
    labels = torch.tensor([0, 4095, 4096, 8_999, int((hidden[4] @ head.T).argmax())])
    weights, share = torch.rand(ROWS, generator=generator), torch.tensor(SHARE)
    losses, surprises, right = torch.empty(ROWS), torch.empty(ROWS), torch.empty(ROWS, dtype=torch.bool)

    logits = hidden @ head.T
    cross_entropy[(ROWS,)](logits, labels, weights, losses, right, SIZE=VOCABULARY, TILE=4096)
    expected = score_piece(hidden, head, labels, weights)
    plain = [apart(*pair) for pair in zip((losses, right, logits @ head), expected, strict=True)]

    logits, wishes = hidden @ head.T, taught @ head.T
    given = (logits, labels, weights, wishes, share, losses, surprises, right)
    taught_cross_entropy[(ROWS,)](*given, SIZE=VOCABULARY, TILE=4096)
    expected = score_taught(hidden, head, labels, weights, taught, share)
    with_teacher = [apart(*pair) for pair in zip((losses, right, logits @ head, surprises), expected, strict=True)]
    print(json.dumps({"plain": plain, "taught": with_teacher}))


if __name__ == "__main__":
    main()
