"""Documents packed into rows of a few fixed lengths, so that the set of compiled shapes is closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash.atomic import whole_file
from dflash.errors import DataError, storage_error
from dflash.training.encoding import Encoded

PADDING = -1
"""The document id of a row's unused tail."""


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
    """The smallest bucket that holds `length` tokens (the largest, for what was cut to it)."""
    return next(bucket for bucket in buckets if length <= bucket)


def pack(documents: Sequence[Encoded], buckets: Sequence[int]) -> dict[int, Rows]:
    """Pack by first fit, longest first; ties keep the order given. Buckets without a document are left out."""
    buckets = sorted(buckets)
    bins: dict[int, list[list[int]]] = {bucket: [] for bucket in buckets}
    room: dict[int, list[int]] = {bucket: [] for bucket in buckets}
    for index in sorted(range(len(documents)), key=lambda i: -len(documents[i].tokens)):
        size = len(documents[index].tokens)
        bucket = bucket_of(size, buckets)
        spot = next((i for i, left in enumerate(room[bucket]) if size <= left), None)
        if spot is None:
            bins[bucket].append([])
            room[bucket].append(bucket)
            spot = len(bins[bucket]) - 1
        bins[bucket][spot].append(index)
        room[bucket][spot] -= size
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
    tensors = {
        f"{bucket}/{name}": getattr(rows, name)
        for bucket, rows in packed.items()
        for name in ("tokens", "documents", "positions", "trainable")
    }
    with whole_file(path) as draft:
        save_file(tensors, draft)


def load_rows(path: Path) -> dict[int, Rows]:
    """What `save_rows` wrote, by bucket length.

    Raises:
        DataError, StorageError: the file is damaged, or can not be read.
    """
    try:
        tensors = load_file(path)
        buckets = sorted({int(key.partition("/")[0]) for key in tensors})
        return {
            bucket: Rows(*(tensors[f"{bucket}/{name}"] for name in ("tokens", "documents", "positions", "trainable")))
            for bucket in buckets
        }
    except OSError as failure:
        raise storage_error(failure, path) from failure
    except Exception as failure:  # safetensors has an exception class of its own
        raise DataError(f"not packed rows ({failure})", where=str(path), cure="remove it and run again") from failure
