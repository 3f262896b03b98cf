"""The block mask against a loop that says in the paper's words what a drafted token may look at."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dflash.model.mask import context_ranges, dense_mask, document_mask

CONTEXT, OWN_BLOCK = "context before the anchor", "its own block"
SEEN = {CONTEXT, OWN_BLOCK}


def kind(query: int, key: int, anchors: list[int], documents: list[int], block: int) -> str:
    """What `key` is to the drafted token `query`."""
    anchor, length = anchors[query // block], len(documents)
    if key >= length:
        return OWN_BLOCK if (key - length) // block == query // block else "another block"
    if anchor < 0:
        return "context, for an unused slot"
    if documents[key] < 0:
        return "padding"
    if documents[key] != documents[anchor]:
        return "another document, before" if key < anchor else "another document, after"
    if key == anchor:
        return "the anchor's own hidden state"
    return CONTEXT if key < anchor else "a future context token"


def by_loop(anchors: list[int], documents: list[int], block: int, seen: Collection[str]) -> Tensor:
    drafted = len(anchors) * block
    rows = [
        [kind(query, key, anchors, documents, block) in seen for key in range(len(documents) + drafted)]
        for query in range(drafted)
    ]
    return torch.tensor(rows)


def positions_in(documents: list[int]) -> list[int]:
    """Each token's place in its document; 0 in the padding."""
    return [place - documents.index(each) if each >= 0 else 0 for place, each in enumerate(documents)]


def mask_of(anchors: list[list[int]], documents: list[list[int]], block: int, window: int | None = None) -> Tensor:
    positions = torch.tensor([positions_in(row) for row in documents])
    ranges = context_ranges(torch.tensor(anchors), positions, block, window)
    return dense_mask(ranges, len(documents[0]), block, causal=window is not None)


@st.composite
def packed_rows(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], int]:
    """Anchors (B, A) and document ids (B, S) of rows as packing and drawing make them, and a block size."""
    length, block = draw(st.integers(1, 14)), draw(st.integers(2, 4))
    slots = draw(st.integers(1, 4))
    anchors, documents = [], []
    for _ in range(draw(st.integers(1, 2))):
        cuts = sorted(draw(st.sets(st.integers(1, length), max_size=3)))
        sizes = [end - start for start, end in zip([0, *cuts], cuts, strict=False)]
        ids = [number for number, size in enumerate(sizes) for _ in range(size)]
        documents.append(ids + [-1] * (length - len(ids)))
        places = sorted(draw(st.sets(st.integers(0, len(ids) - 1), max_size=slots))) if ids else []
        anchors.append(places + [-1] * (slots - len(places)))
    return anchors, documents, block


@settings(max_examples=60)
@given(packed_rows())
def test_a_drafted_token_sees_context_before_its_anchor_and_its_own_block_only(
    rows: tuple[list[list[int]], list[list[int]], int],
):
    anchors, documents, block = rows
    mask = mask_of(anchors, documents, block)
    drafted = len(anchors[0]) * block
    assert mask.shape == (len(anchors), 1, drafted, len(documents[0]) + drafted)
    for row in range(len(anchors)):
        assert torch.equal(mask[row, 0], by_loop(anchors[row], documents[row], block, SEEN))
    assert mask.any(-1).all()  # a query that sees nothing turns a softmax into NaN


def within(anchors: list[int], length: int, block: int, window: int) -> Tensor:
    """Which keys are among the `window` positions that end with the drafted token's own, in the row."""

    def position(token: int) -> int:
        return max(0, anchors[token // block]) + token % block

    drafted = len(anchors) * block
    places = [*range(length), *(position(token) for token in range(drafted))]
    return torch.tensor([[0 <= position(query) - place < window for place in places] for query in range(drafted)])


@settings(max_examples=60)
@given(packed_rows(), st.integers(0, 12))
def test_in_a_sliding_layer_it_sees_of_these_the_window_that_ends_with_itself(
    rows: tuple[list[list[int]], list[list[int]], int], beyond: int
):
    anchors, documents, block = rows
    mask = mask_of(anchors, documents, block, block + beyond)
    for row in range(len(anchors)):
        everything = by_loop(anchors[row], documents[row], block, SEEN)
        assert torch.equal(mask[row, 0], everything & within(anchors[row], len(documents[row]), block, block + beyond))
    assert mask.any(-1).all()


ANCHORS = [1, 2, 6, 8, -1]
"""Overlapping blocks (1 and 2), a document's second token (6), a token at a document's end (8), an unused slot."""
DOCUMENTS = [0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, -1]
KINDS = {kind(q, k, ANCHORS, DOCUMENTS, 3) for q in range(15) for k in range(12 + 15)}


def test_the_example_has_every_kind_of_key():
    assert len(KINDS - SEEN) == 7
    assert SEEN < KINDS


@pytest.mark.parametrize("leak", sorted(KINDS - SEEN))
def test_nothing_is_visible_of(leak: str):
    mask = mask_of([ANCHORS], [DOCUMENTS], 3)[0, 0]
    leaking = by_loop(ANCHORS, DOCUMENTS, 3, {leak})
    assert leaking.any()
    assert not (mask & leaking).any()


@pytest.mark.parametrize("part", sorted(SEEN))
def test_everything_is_visible_of(part: str):
    mask = mask_of([ANCHORS], [DOCUMENTS], 3)[0, 0]
    wanted = by_loop(ANCHORS, DOCUMENTS, 3, {part})
    assert wanted.any()
    assert torch.equal(mask & wanted, wanted)


def test_the_first_and_the_last_slot_of_a_block_see_each_other():
    mask = mask_of([[3]], [[0] * 6], 4)[0, 0]
    assert mask[0, 6 + 3]
    assert mask[3, 6 + 0]


def test_a_block_at_the_first_token_sees_no_context():
    mask = mask_of([[0]], [[0] * 6], 4)[0, 0]
    assert not mask[:, :6].any()


def test_the_targets_mask_is_causal_inside_each_document():
    documents = torch.tensor([[0, 0, 1, 1, 1, -1], [0, 1, 1, 2, 2, 2]])
    mask = document_mask(documents)
    assert mask.shape == (2, 1, 6, 6)
    for row in range(2):
        for query in range(6):
            for key in range(6):
                expected = key <= query and documents[row, key] == documents[row, query]
                assert bool(mask[row, 0, query, key]) == bool(expected)
