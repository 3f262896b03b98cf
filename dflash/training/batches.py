"""Which rows and anchors make which micro-batch: pure functions of seed and index, so that resume is exact."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash.errors import DataError
from dflash.training.packing import Rows


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`, without waiting for what the device still has to do: memory that could be swapped out is
    copied only then, so it is put into memory that can not be."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch: tokens, documents, positions, trainable (R, S) and sorted anchors (R, A), -1 when unused."""

    index: int
    tokens: Tensor
    documents: Tensor
    positions: Tensor
    trainable: Tensor
    anchors: Tensor

    def to(self, device: torch.device) -> MicroBatch:
        """The same micro-batch on `device`."""
        tensors = (self.tokens, self.documents, self.positions, self.trainable, self.anchors)
        return MicroBatch(self.index, *(sent(tensor, device) for tensor in tensors))


def anchor_candidates(trainable: Tensor, documents: Tensor) -> Tensor:
    """Where a block may start, bool (R, S): at a trainable token whose successor, in its document, is one too.

    At inference an anchor is always a token that the target has generated, so prompts give no anchors.
    """
    follows = (trainable[:, 1:] & (documents[:, 1:] == documents[:, :-1])) & trainable[:, :-1]
    return torch.nn.functional.pad(follows, (0, 1))


def draw_anchors(candidates: Tensor, documents: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` different candidates of each row, sorted, (R, count); -1 fills up a row that has fewer.

    A row's documents share them evenly, and what a short one cannot use goes to the others: drawn from the row as a
    whole, they would mostly lie in the long documents, and a short one that shares its row would be learned from less
    than one that has a row of its own (speculators#1071). `candidates` and `documents` are (R, S).
    """
    shuffle, turn = torch.rand((2, *candidates.shape), generator=generator, dtype=torch.double)
    # Each candidate's place among those of its document, in random order: all that are first come before any second.
    ordered, order = torch.where(candidates, documents + shuffle, torch.inf).sort(dim=1)
    numbers = ordered.floor()
    place = torch.arange(candidates.shape[1]) - torch.searchsorted(numbers, numbers)
    turn.scatter_add_(1, order, place.double())
    length = candidates.shape[1]
    best = turn.masked_fill(~candidates, torch.inf).topk(min(count, length), dim=1, largest=False)
    chosen = best.indices.masked_fill(best.values.isinf(), length).sort(dim=1).values
    padded = torch.nn.functional.pad(chosen, (0, count - chosen.shape[1]), value=length)
    return padded.masked_fill(padded == length, -1)


def generator_of(*key: object) -> torch.Generator:
    """A generator of random numbers that `key` alone decides, however large the numbers in it."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]))


class Batches:
    """The endless sequence of micro-batches over packed rows, of `rows` rows and `anchors` anchors a row.

    Each epoch deals all rows anew; a micro-batch is of one bucket, and a bucket's last micro-batch of an epoch is
    filled up with the epoch's first rows of that bucket, so that its shape is one of the closed set.
    """

    def __init__(
        self, packed: Mapping[int, Rows], *, rows: int, anchors: int, seed: int, shift: int = 0, once: bool = False
    ) -> None:
        """With a `shift`, number 0 is the micro-batch that would else have that number. With `once`, rows that only
        fill up have no anchors, so that each row counts once."""
        if not any(len(part) for part in packed.values()):
            raise DataError("there is no row to train on")
        self._packed, self._rows, self._anchors, self._seed = packed, rows, anchors, seed
        self._shift, self._once = shift, once
        self._epoch: tuple[int, list[tuple[int, Tensor]]] | None = None
        self.per_epoch = sum(-(-len(part) // rows) for part in packed.values() if len(part))

    def __getitem__(self, index: int) -> MicroBatch:
        index += self._shift
        bucket, chosen = self._rows_of(index)
        part = self._packed[bucket]
        fills, chosen = chosen < 0, chosen.clamp(min=0)
        trainable, documents = part.trainable[chosen], part.documents[chosen].long()
        generator = generator_of("anchors", self._seed, index)
        anchors = draw_anchors(anchor_candidates(trainable, documents), documents, self._anchors, generator)
        return MicroBatch(
            index,
            part.tokens[chosen].long(),
            documents,
            part.positions[chosen].long(),
            trainable,
            anchors.masked_fill(fills[:, None], -1),
        )

    def describe(self, index: int) -> str:
        """Which rows micro-batch `index` is made of, in words."""
        bucket, chosen = self._rows_of(index + self._shift)
        return f"rows {', '.join(map(str, chosen.tolist()))} of bucket {bucket}"

    def _rows_of(self, index: int) -> tuple[int, Tensor]:
        """The bucket, and the numbers of its rows; with `once`, -1 for one that only fills up."""
        epoch, place = divmod(index, self.per_epoch)
        return self._deal(epoch)[place]

    def _deal(self, epoch: int) -> list[tuple[int, Tensor]]:
        if self._epoch is None or self._epoch[0] != epoch:
            generator = generator_of("rows", self._seed, epoch)
            dealt: list[tuple[int, Tensor]] = []
            for bucket, part in sorted(self._packed.items()):
                order = torch.randperm(len(part), generator=generator)
                short = -len(part) % self._rows
                if short:
                    again = order.new_full((1,), -1) if self._once else order
                    order = torch.cat((order, again.repeat(-(-short // len(again)))[:short]))
                dealt += [(bucket, rows) for rows in order.split(self._rows)]
            mixed = torch.randperm(len(dealt), generator=generator).tolist()
            self._epoch = (epoch, [dealt[i] for i in mixed])
        return self._epoch[1]
