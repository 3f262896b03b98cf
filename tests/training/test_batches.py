"""Micro-batches: every row once an epoch, anchors where a block can start, all of it decided by seed and index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dflash.errors import DataError
from dflash.training.batches import Batches, MicroBatch, anchor_candidates, draw_anchors
from dflash.training.packing import Rows

FIELDS = ("tokens", "documents", "positions", "trainable", "anchors")


def rows_of(count: int, length: int, first: int = 0) -> Rows:
    """Rows that a number of their own fills, one document each, trainable but for the first two tokens."""
    numbers = torch.arange(first, first + count, dtype=torch.int32)[:, None].expand(count, length).contiguous()
    positions = torch.arange(length, dtype=torch.int32).expand(count, length).contiguous()
    return Rows(numbers, torch.zeros(count, length, dtype=torch.int32), positions, positions >= 2)


def batches_of(packed: Mapping[int, Rows], *, rows: int = 2, anchors: int = 3, seed: int = 0) -> Batches:
    return Batches(packed, rows=rows, anchors=anchors, seed=seed)


TWO_BUCKETS = {8: rows_of(5, 8), 16: rows_of(4, 16, first=100)}


def numbers_in(batch: MicroBatch) -> list[int]:
    return batch.tokens[:, 0].tolist()


def same(one: MicroBatch, other: MicroBatch) -> bool:
    return one.index == other.index and all(torch.equal(getattr(one, name), getattr(other, name)) for name in FIELDS)


@pytest.mark.parametrize("epoch", range(3))
def test_an_epoch_deals_every_row_and_repeats_only_to_fill_up_a_buckets_last_micro_batch(epoch: int):
    batches = batches_of(TWO_BUCKETS)
    assert batches.per_epoch == 3 + 2
    dealt = [batches[epoch * batches.per_epoch + place] for place in range(batches.per_epoch)]
    counts = Counter(number for batch in dealt for number in numbers_in(batch))
    assert set(counts) == {*range(5), *range(100, 104)}
    assert sorted(counts.values()) == [1] * 8 + [2]
    assert {number for number, count in counts.items() if count == 2} <= set(range(5))
    assert all(batch.tokens.shape in {(2, 8), (2, 16)} for batch in dealt)


def test_what_fills_up_is_the_epochs_first_row_of_the_bucket():
    batches = batches_of({8: rows_of(3, 8)}, rows=2)
    for epoch in range(6):
        one, other = (numbers_in(batches[2 * epoch + place]) for place in range(2))
        assert {*one, *other} == {0, 1, 2}
        assert one[1] == other[0] or other[1] == one[0]


@pytest.mark.parametrize(("count", "rows"), [(1, 4), (2, 5), (3, 3), (7, 4)])
def test_a_bucket_smaller_than_a_micro_batch_still_fills_one(count: int, rows: int):
    batches = batches_of({8: rows_of(count, 8)}, rows=rows)
    assert batches.per_epoch == -(-count // rows)
    counts = Counter(number for place in range(batches.per_epoch) for number in numbers_in(batches[place]))
    assert set(counts) == set(range(count))
    assert max(counts.values()) - min(counts.values()) <= 1
    assert counts.total() == batches.per_epoch * rows


def test_epochs_deal_in_different_orders():
    batches = batches_of({8: rows_of(40, 8)})
    orders = [tuple(n for place in range(20) for n in numbers_in(batches[20 * epoch + place])) for epoch in range(3)]
    assert len(set(orders)) == 3


def test_buckets_are_mixed():
    batches = batches_of({8: rows_of(20, 8), 16: rows_of(20, 16)})
    lengths = [batches[place].tokens.shape[1] for place in range(20)]
    assert lengths != sorted(lengths)
    assert lengths != sorted(lengths, reverse=True)


@pytest.mark.parametrize("seed", [0, 1, 20261129, 2**62])
def test_a_micro_batch_depends_on_seed_and_index_alone(seed: int):
    """Not on what was asked for before, and not on torch's own random state; also for a seed that is a date."""
    forward, backward = batches_of(TWO_BUCKETS, seed=seed), batches_of(TWO_BUCKETS, seed=seed)
    indices = range(17)
    one = [forward[index] for index in indices]
    torch.manual_seed(7)
    torch.rand(3)
    other = {index: backward[index] for index in reversed(indices)}
    assert all(same(one[index], other[index]) for index in indices)


def test_seeds_and_indices_give_different_anchors():
    drawn = [
        tuple(batches_of({64: rows_of(1, 64)}, rows=1, anchors=8, seed=seed)[index].anchors[0].tolist())
        for seed in range(3)
        for index in range(10)
    ]
    assert len(set(drawn)) == 30


@pytest.mark.parametrize("place", range(5))
def test_a_micro_batch_is_made_of_its_rows(place: int):
    batch = batches_of(TWO_BUCKETS)[place]
    part = TWO_BUCKETS[batch.tokens.shape[1]]
    chosen = torch.tensor(numbers_in(batch)) % 100
    for name in FIELDS[:-1]:
        assert torch.equal(getattr(batch, name), getattr(part, name)[chosen].to(getattr(batch, name).dtype))
    assert {getattr(batch, name).dtype for name in ("tokens", "documents", "positions", "anchors")} == {torch.long}
    assert batch.trainable.dtype == torch.bool
    assert same(batch.to(torch.device("cpu")), batch)


def test_rows_too_few_to_train_on_are_refused():
    for packed in ({}, {8: rows_of(0, 8)}):
        with pytest.raises(DataError, match="there is no row to train on"):
            batches_of(packed)


def test_a_block_may_start_at_a_trainable_token_with_a_trainable_successor_in_its_document():
    trainable = torch.tensor([[0, 1, 1, 1, 0, 1, 1, 1, 1, 0]]).bool()
    documents = torch.tensor([[0, 0, 0, 0, 0, 0, 0, 1, 1, -1]])
    assert anchor_candidates(trainable, documents)[0].nonzero().flatten().tolist() == [1, 2, 5, 7]


@st.composite
def masks(draw: st.DrawFn) -> Tensor:
    rows, length = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    bits = draw(st.lists(st.booleans(), min_size=rows * length, max_size=rows * length))
    return torch.tensor(bits).view(rows, length)


def split_at(candidates: Tensor, cuts: set[int]) -> Tensor:
    """Documents of rows that are cut at these places."""
    starts = torch.tensor([place in cuts for place in range(candidates.shape[1])])
    return starts.long().cumsum(0).expand(candidates.shape)


@given(masks(), st.sets(st.integers(1, 11)), st.integers(1, 15), st.integers(0, 2**32))
def test_anchors_are_sorted_different_candidates_as_many_as_there_are_and_then_unused(
    candidates: Tensor, cuts: set[int], count: int, seed: int
):
    documents = split_at(candidates, cuts)
    drawn = draw_anchors(candidates, documents, count, torch.Generator().manual_seed(seed))
    assert drawn.shape == (len(candidates), count)
    for row, anchors in enumerate(drawn.tolist()):
        allowed = candidates[row].nonzero().flatten().tolist()
        used = [anchor for anchor in anchors if anchor >= 0]
        assert anchors == used + [-1] * (count - len(used))
        assert used == sorted(set(used))
        assert set(used) <= set(allowed)
        assert len(used) == min(count, len(allowed))
        shares = [(documents[row, used] == each).sum().item() for each in documents[row].unique()]
        held = [(documents[row, allowed] == each).sum().item() for each in documents[row].unique()]
        full = max(shares)
        assert all(share in (have, full, full - 1) for share, have in zip(shares, held, strict=True)), (shares, held)


def test_a_short_document_beside_a_long_one_gets_as_many_anchors_as_by_itself():
    candidates = torch.ones(1, 1000, dtype=torch.bool)
    documents = split_at(candidates, {100})
    drawn = draw_anchors(candidates, documents, 512, torch.Generator().manual_seed(0))[0]
    assert (drawn < 100).sum() == 100
    assert (drawn >= 100).sum() == 412


def test_every_candidate_is_drawn_about_as_often():
    candidates = torch.ones(2000, 10, dtype=torch.bool)
    drawn = draw_anchors(candidates, torch.zeros(2000, 10).long(), 3, torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn.flatten(), minlength=10)
    assert (counts - 600).abs().max() < 5 * (2000 * 0.3 * 0.7) ** 0.5  # five standard deviations
