"""The tiled mask says of every pair of tokens what the dense one says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from dflash.model.mask import Ranges, context_ranges, dense_mask, visible
from dflash.model.tiles import TILE, Tiles, tile_maps, tiles_of

LENGTH = 3 * TILE
TileList = tuple[Tensor, Tensor]


def row(lengths: list[int], anchors: list[int], count: int) -> tuple[Tensor, Tensor]:
    """Anchors (1, count) and positions (1, S) of one packed row of documents of `lengths`, padded at its end."""
    positions = torch.cat([torch.arange(size) for size in lengths] + [torch.zeros(LENGTH - sum(lengths))]).long()
    return torch.tensor([sorted(anchors) + [-1] * (count - len(anchors))]), positions[None]


@st.composite
def rows(draw: st.DrawFn) -> tuple[Ranges, int, bool]:
    block = draw(st.sampled_from([4, 8, 10, 16]))
    count = draw(st.integers(1, 2)) * TILE // (2 if block == 10 else block)  # so that they fill up tiles
    cuts = sorted(draw(st.sets(st.sampled_from([1, 7, 100, 127, 128, 129, 250, 256, 300, LENGTH]), min_size=1)))
    lengths = [end - start for start, end in zip([0, *cuts], cuts, strict=False)]
    places = draw(st.sets(st.integers(0, cuts[-1] - 1), max_size=min(count, 40)))
    anchors, positions = row(lengths, sorted(places), count)
    window = draw(st.sampled_from([None, 16, 100, 129, LENGTH]))
    return context_ranges(anchors, positions, block, window), block, window is not None


@settings(max_examples=40)
@given(rows())
def test_full_tiles_are_all_visible_the_others_that_are_listed_partly_and_the_rest_not_at_all(
    drawn: tuple[Ranges, int, bool],
):
    ranges, block, causal = drawn
    some, full = tile_maps(ranges, LENGTH, block, causal)
    dense = dense_mask(ranges, LENGTH, block, causal)
    seen = dense.unflatten(3, (-1, TILE)).unflatten(2, (-1, TILE)).transpose(3, 4)
    assert torch.equal(full, seen.all(-1).all(-1) & full)
    assert torch.equal(some | full, seen.any(-1).any(-1))
    assert not (some & full).any()


def test_a_tile_that_can_be_full_is():
    anchors, positions = row([LENGTH], list(range(2 * TILE, 2 * TILE + 8)), 8)
    some, full = tile_maps(context_ranges(anchors, positions, 16), LENGTH, 16)
    assert full[0, 0].tolist() == [[True, True, False, False]]
    assert some[0, 0].tolist() == [[False, False, True, True]]  # the anchors' own tile, and the blocks


def test_a_window_leaves_out_the_tiles_before_it():
    anchors, positions = row([LENGTH], list(range(2 * TILE, 2 * TILE + 8)), 8)
    some, full = tile_maps(context_ranges(anchors, positions, 16, 100), LENGTH, 16, causal=True)
    assert not full.any()
    assert some[0, 0].tolist() == [[False, True, True, True]]


def spelled_out(tiles: Tiles, block: int, causal: bool) -> Tensor:
    """The mask that flex attention makes of the lists, by queries and by keys; they must agree."""
    made = tiles.block_mask(LENGTH, block, causal)
    queries, keys = tiles.ranges.start.shape[1], LENGTH + tiles.ranges.start.shape[1]
    pairs = visible(
        torch.arange(queries)[:, None],
        torch.arange(keys),
        *(bound[0, :, None] for bound in tiles.ranges),
        length=LENGTH,
        block=block,
        causal=causal,
    )

    def spread(some: TileList, full: TileList, *, by_key: bool) -> Tensor:
        mask = torch.zeros(queries, keys, dtype=torch.bool)
        for (number, places), whole in ((some, False), (full, True)):
            for row in range(number.shape[2]):
                for column in places[0, 0, row, : number[0, 0, row]].tolist():
                    q, k = (column, row) if by_key else (row, column)
                    tile = slice(q * TILE, (q + 1) * TILE), slice(k * TILE, (k + 1) * TILE)
                    mask[tile] = True if whole else pairs[tile]
        return mask

    by_query = spread(
        (made.kv_num_blocks, made.kv_indices), (made.full_kv_num_blocks, made.full_kv_indices), by_key=False
    )
    by_key = spread((made.q_num_blocks, made.q_indices), (made.full_q_num_blocks, made.full_q_indices), by_key=True)
    assert torch.equal(by_query, by_key)
    return by_query


@pytest.mark.parametrize("window", [None, 20, 130])
@pytest.mark.parametrize("block", [8, 16])
def test_the_lists_spell_out_the_dense_mask(block: int, window: int | None):
    count, causal = 2 * TILE // block, window is not None
    anchors, positions = row([150, 90, 100], [0, 3, 40, 149, 151, 170, 250, 330], count)
    ranges = context_ranges(anchors, positions, block, window)
    spelled = spelled_out(tiles_of(ranges, LENGTH, block, causal), block, causal)
    assert torch.equal(spelled, dense_mask(ranges, LENGTH, block, causal)[0, 0])


def test_every_list_is_contiguous_as_the_kernels_take_it_to_be():
    anchors, positions = row([150, 90, 100], [0, 3, 40, 149], 16)
    tiles = tiles_of(context_ranges(anchors, positions, 16), LENGTH, 16)
    assert all(part.is_contiguous() and part.dtype == torch.int32 for part in tiles[:-1])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # it need not be fast
@pytest.mark.parametrize("window", [None, 20])
def test_flex_attention_takes_it_and_gives_what_dense_attention_gives(window: int | None):
    anchors, positions = row([150, 90, 100], [0, 3, 40, 149, 151, 170, 250, 330], 8)
    ranges, causal = context_ranges(anchors, positions, 16, window), window is not None
    tiled, written = tiles_of(ranges, LENGTH, 16, causal), dense_mask(ranges, LENGTH, 16, causal)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, TILE, 8, generator=generator)
    key, value = (torch.randn(1, 2, LENGTH + TILE, 8, generator=generator) for _ in range(2))
    with torch.no_grad():
        mixed = flex_attention(query, key, value, block_mask=tiled.block_mask(LENGTH, 16, causal), enable_gqa=True)
    dense = scaled_dot_product_attention(query, key, value, attn_mask=written, enable_gqa=True)
    assert torch.allclose(mixed, dense, atol=1e-5)
