"""Kernels in Triton, for GPUs. torch's builds without CUDA have no Triton: import this only where there is a GPU."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cross_entropy(logits, labels, weights, losses, right, size, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row of logits a program, (N, size): its loss, whether its label was the best token (the first of equals),
    and, in place of the logits, the gradient of weight x loss. The normaliser is summed while the maximum is sought
    (Milakov and Gimelshein 2018, arXiv 1805.02867)."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * size
    columns = tl.arange(0, TILE)
    label = tl.load(labels + row)
    weight = tl.load(weights + row).to(tl.float32)
    peak = float("-inf")
    total = 0.0
    best = 0
    for first in range(0, size, TILE):
        column = first + columns
        score = tl.load(logits + column, mask=column < size, other=float("-inf")).to(tl.float32)
        top = tl.max(score, 0)
        best = tl.where(top > peak, first + tl.argmax(score, 0), best)
        higher = tl.maximum(peak, top)
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(score - higher), 0)
        peak = higher
    normal = peak + tl.log(total)
    tl.store(losses + row, normal - tl.load(logits + label).to(tl.float32))
    tl.store(right + row, best == label)
    for first in range(0, size, TILE):
        column = first + columns
        score = tl.load(logits + column, mask=column < size, other=float("-inf")).to(tl.float32)
        chance = tl.exp(score - normal)
        slope = tl.where(column == label, chance - 1.0, chance) * weight
        tl.store(logits + column, slope.to(logits.dtype.element_ty), mask=column < size)
