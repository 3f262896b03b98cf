"""Kernels in Triton, for GPUs. torch's builds without CUDA have no Triton: import this only where there is a GPU."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cross_entropy(logits, labels, weights, losses, right, SIZE: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row of logits a program, (N, SIZE): its loss, whether its label was the best token (the first of equals),
    and, in place of the logits, the gradient of weight x loss. The normaliser is summed while the maximum is sought
    (Milakov and Gimelshein 2018, arXiv 1805.02867)."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * SIZE
    columns = tl.arange(0, TILE)
    label = tl.load(labels + row)
    weight = tl.load(weights + row).to(tl.float32)
    peak = float("-inf")
    total = 0.0
    best = 0
    for first in range(0, SIZE, TILE):
        column = first + columns
        score = tl.load(logits + column, mask=column < SIZE, other=float("-inf")).to(tl.float32)
        top = tl.max(score, 0)
        best = tl.where(top > peak, first + tl.argmax(score, 0), best)
        higher = tl.maximum(peak, top)
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(score - higher), 0)
        peak = higher
    normal = peak + tl.log(total)
    tl.store(losses + row, normal - tl.load(logits + label).to(tl.float32))
    tl.store(right + row, best == label)
    for first in range(0, SIZE, TILE):
        column = first + columns
        score = tl.load(logits + column, mask=column < SIZE, other=float("-inf")).to(tl.float32)
        chance = tl.exp(score - normal)
        slope = tl.where(column == label, chance - 1.0, chance) * weight
        tl.store(logits + column, slope.to(logits.dtype.element_ty), mask=column < SIZE)


@triton.jit
def taught_cross_entropy(  # type: ignore[no-untyped-def]
    logits, labels, weights, wishes, share, losses, surprises, right, SIZE: tl.constexpr, TILE: tl.constexpr
):
    """`cross_entropy` with a teacher's logits `wishes` (N, SIZE): the loss is (1 - share) x -log p(label) + share x
    KL(teacher || p), and -log p(label) goes to `surprises`. Both normalisers, and the teacher's mean of the difference
    of the two logits, are summed while the maxima are sought."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * SIZE
    wishes += row * SIZE
    columns = tl.arange(0, TILE)
    label = tl.load(labels + row)
    weight = tl.load(weights + row).to(tl.float32)
    part = tl.load(share).to(tl.float32)
    peak = float("-inf")
    total = 0.0
    best = 0
    teachers_peak = float("-inf")
    teachers_total = 0.0
    apart = 0.0
    for first in range(0, SIZE, TILE):
        column = first + columns
        inside = column < SIZE
        score = tl.load(logits + column, mask=inside, other=float("-inf")).to(tl.float32)
        wish = tl.load(wishes + column, mask=inside, other=float("-inf")).to(tl.float32)
        top = tl.max(score, 0)
        best = tl.where(top > peak, first + tl.argmax(score, 0), best)
        higher = tl.maximum(peak, top)
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(score - higher), 0)
        peak = higher
        higher = tl.maximum(teachers_peak, tl.max(wish, 0))
        shrink = tl.exp(teachers_peak - higher)
        chance = tl.exp(wish - higher)
        teachers_total = teachers_total * shrink + tl.sum(chance, 0)
        apart = apart * shrink + tl.sum(tl.where(inside, chance * (wish - score), 0.0), 0)
        teachers_peak = higher
    normal = peak + tl.log(total)
    teachers_normal = teachers_peak + tl.log(teachers_total)
    surprise = normal - tl.load(logits + label).to(tl.float32)
    divergence = apart / teachers_total - teachers_normal + normal
    tl.store(surprises + row, surprise)
    tl.store(losses + row, surprise + part * (divergence - surprise))
    tl.store(right + row, best == label)
    for first in range(0, SIZE, TILE):
        column = first + columns
        inside = column < SIZE
        score = tl.load(logits + column, mask=inside, other=float("-inf")).to(tl.float32)
        wish = tl.load(wishes + column, mask=inside, other=float("-inf")).to(tl.float32)
        asked = part * tl.exp(wish - teachers_normal) + tl.where(column == label, 1.0 - part, 0.0)
        slope = (tl.exp(score - normal) - asked) * weight
        tl.store(logits + column, slope.to(logits.dtype.element_ty), mask=inside)
