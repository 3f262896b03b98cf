"""Documents packed into rows of a few fixed lengths, so that the set of compiled shapes is closed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from dflash.atomic import whole_file
from dflash.errors import DataError, storage_error
from dflash.model.tensors import write_tensors
from dflash.training.encoding import Encoded

PADDING = -1
"""The document id of a row's unused tail."""

TENSORS = ("tokens", "documents", "positions", "trainable")
"""The tensors of a `Rows`, in order."""


@dataclass(frozen=True)
class Rows:
    """Packed rows of one bucket, each (N, S): tokens, document ids (-1 is padding), positions inside the document,
    and which tokens are trainable."""

    tokens: Tensor
    documents: Tensor
    positions: Tensor
    trainable: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        """S, the bucket's length in tokens."""
        return self.tokens.shape[1]


def bucket_of(length: int, buckets: Sequence[int]) -> int:
    """The smallest of the sorted `buckets` that holds `length` tokens; documents were cut to the largest before."""
    return next(bucket for bucket in buckets if length <= bucket)


def pack(documents: Sequence[Encoded], buckets: Sequence[int]) -> dict[int, Rows]:
    """Pack by best fit, longest first; ties keep the order given. Buckets without a document are left out.

    Each document goes into its smallest bucket, into the row there with the least room that is enough.
    """
    buckets = sorted(buckets)
    bins: dict[int, list[list[int]]] = {bucket: [] for bucket in buckets}
    room: dict[int, list[tuple[int, int]]] = {bucket: [] for bucket in buckets}  # (tokens left, row), sorted
    for index in sorted(range(len(documents)), key=lambda i: -len(documents[i].tokens)):
        size = len(documents[index].tokens)
        bucket = bucket_of(size, buckets)
        place = bisect_left(room[bucket], (size, 0))
        if place == len(room[bucket]):
            left, row = bucket, len(bins[bucket])
            bins[bucket].append([])
        else:
            left, row = room[bucket].pop(place)
        bins[bucket][row].append(index)
        if left > size:
            insort(room[bucket], (left - size, row))
    return {
        bucket: _rows([[documents[i] for i in row] for row in bins[bucket]], bucket)
        for bucket in buckets
        if bins[bucket]
    }


def _rows(rows: list[list[Encoded]], length: int) -> Rows:
    tokens = torch.zeros(len(rows), length, dtype=torch.int32)
    documents = torch.full((len(rows), length), PADDING, dtype=torch.int32)
    positions = torch.zeros(len(rows), length, dtype=torch.int32)
    trainable = torch.zeros(len(rows), length, dtype=torch.bool)
    for row, members in enumerate(rows):
        start = 0
        for document, member in enumerate(members):
            end = start + len(member.tokens)
            tokens[row, start:end] = member.tokens
            documents[row, start:end] = document
            positions[row, start:end] = torch.arange(end - start, dtype=torch.int32)
            trainable[row, start:end] = member.trainable
            start = end
    return Rows(tokens, documents, positions, trainable)


def save_rows(path: Path, packed: dict[int, Rows]) -> None:
    """Write all buckets into one safetensors file, whole."""
    tensors = {f"{bucket}/{name}": getattr(rows, name) for bucket, rows in packed.items() for name in TENSORS}
    with whole_file(path) as draft:
        write_tensors(draft, tensors)


def load_rows(path: Path) -> dict[int, Rows]:
    """What `save_rows` or `writing_rows` (dflash/training/streaming.py) wrote, by bucket length; mapped, not read.

    Raises:
        DataError, StorageError: the file is damaged, or can not be read.
    """
    try:
        tensors = load_file(path)
        buckets = sorted({int(key.partition("/")[0]) for key in tensors})
        return {bucket: Rows(*(tensors[f"{bucket}/{name}"] for name in TENSORS)) for bucket in buckets}
    except OSError as failure:
        raise storage_error(failure, path) from failure
    except Exception as failure:  # safetensors has an exception class of its own
        raise DataError(f"not packed rows ({failure})", where=str(path), cure="remove it and run again") from failure
