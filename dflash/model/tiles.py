"""The block mask for flex attention, built from the queries' ranges without looking at a single pair of tokens.

torch's `create_block_mask` asks for every (query, key) pair; with 512 anchors of 16 tokens behind 3072 that is 92
million, each step. Here a tile of queries is compared with the borders of the tiles of keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from dflash.model.mask import Ranges, visible

TILE = 128
"""Queries, and keys, of a tile: flex attention's own default. Lengths must be multiples of it."""


class Tiles(NamedTuple):
    """A block mask as tensors, so that it can be an argument of a compiled function.

    `some_*` are tiles in which some pairs see each other, `full_*` those in which all do; for each row of tiles their
    number (B, 1, rows) and their indices in order (B, 1, rows, columns), by queries and, `*_keys`, by keys. `ranges`
    decides about pairs.
    """

    some: Tensor
    some_at: Tensor
    full: Tensor
    full_at: Tensor
    some_keys: Tensor
    some_keys_at: Tensor
    full_keys: Tensor
    full_keys_at: Tensor
    ranges: Ranges

    def block_mask(self, length: int, block: int, causal: bool = False) -> BlockMask:
        """flex attention's own object; `length` is S, and `causal` what `tiles_of` was told: it shapes the kernel."""
        start, limit = self.ranges

        def pair(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            bounds = start[batch, query], limit[batch, query]
            return visible(query, key, *bounds, length=length, block=block, causal=causal)

        drafted = start.shape[1]
        return BlockMask(
            seq_lengths=(drafted, length + drafted),
            kv_num_blocks=self.some,
            kv_indices=self.some_at,
            full_kv_num_blocks=self.full,
            full_kv_indices=self.full_at,
            q_num_blocks=self.some_keys,
            q_indices=self.some_keys_at,
            full_q_num_blocks=self.full_keys,
            full_q_indices=self.full_keys_at,
            BLOCK_SIZE=(TILE, TILE),
            mask_mod=pair,
        )


def tiles_of(ranges: Ranges, length: int, block: int, causal: bool = False) -> Tiles:
    """The tiles of a row of `length` context tokens, a multiple of `TILE` as the number of queries is."""
    some, full = tile_maps(ranges, length, block, causal)
    by_query = (*_listed(some), *_listed(full))
    by_key = (*_listed(some.transpose(-1, -2)), *_listed(full.transpose(-1, -2)))
    return Tiles(*by_query, *by_key, ranges)


def tile_maps(ranges: Ranges, length: int, block: int, causal: bool = False) -> tuple[Tensor, Tensor]:
    """Which tiles hold some pairs that see each other, and not all, and which hold all: bool (B, 1, Q / T, K / T)."""
    device = ranges.start.device
    start, limit = (bound.unflatten(1, (-1, TILE))[..., None] for bound in ranges)  # (B, Q / T, T, 1)
    first = torch.arange(0, length, TILE, device=device)  # of each tile of context
    seen = ((start < first + TILE) & (limit > first) & (start < limit)).any(2)
    whole = ((start <= first) & (limit >= first + TILE)).all(2)
    query = torch.arange(start.shape[1], device=device)[:, None] * TILE
    key = torch.arange(start.shape[1], device=device) * TILE
    last = TILE - 1
    own = (key // block <= (query + last) // block) & ((key + last) // block >= query // block)
    if causal:
        own &= key <= query
    own = own.expand(len(seen), -1, -1)
    some = torch.cat((seen & ~whole, own), dim=-1)
    full = torch.cat((whole, torch.zeros_like(own)), dim=-1)
    return some[:, None], full[:, None]


def _listed(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Number and places of the tiles that are set; places of those that are not come after.

    Both contiguous: flex attention's kernels go through a list one element at a time, whatever its strides, and with a
    sorted transpose its backward pass would read other tiles' places, without a word.
    """
    order = torch.argsort(tiles.int(), dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32).contiguous(), order.int().contiguous()
