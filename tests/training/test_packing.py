"""Packing: every token once, in order, in the smallest row length that holds its document."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash.errors import DataError, StorageError
from dflash.training.encoding import Encoded
from dflash.training.packing import PADDING, Rows, bucket_of, load_rows, pack, save_rows

NAMES = ("tokens", "documents", "positions", "trainable")


def documents_of(sizes: list[int]) -> list[Encoded]:
    """Documents whose every token is different from all others', trainable at every third."""
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [
        Encoded(torch.arange(start, start + size, dtype=torch.int32), torch.arange(size) % 3 == 0)
        for start, size in zip(starts, sizes, strict=True)
    ]


def unpacked(rows: Rows) -> Iterator[tuple[list[int], list[bool]]]:
    """Tokens and mask of each document, by its number in its row."""
    for row in range(len(rows)):
        for number in range(int(rows.documents[row].max()) + 1):
            places = rows.documents[row] == number
            yield rows.tokens[row, places].tolist(), rows.trainable[row, places].tolist()


sizes_and_buckets = st.sets(st.integers(2, 40), min_size=1, max_size=3).flatmap(
    lambda buckets: st.tuples(st.lists(st.integers(1, max(buckets)), min_size=1, max_size=20), st.just(list(buckets)))
)


@given(sizes_and_buckets)
def test_every_token_is_kept_once_in_its_document_and_in_order(case: tuple[list[int], list[int]]):
    sizes, buckets = case
    documents = documents_of(sizes)
    packed = pack(documents, buckets)
    found = [each for rows in packed.values() for each in unpacked(rows)]
    expected = [(document.tokens.tolist(), document.trainable.tolist()) for document in documents]
    assert sorted(found) == sorted(expected)


@given(sizes_and_buckets)
def test_a_document_lies_in_its_smallest_bucket_and_no_row_is_longer_than_its_own(case: tuple[list[int], list[int]]):
    sizes, buckets = case
    packed = pack(documents_of(sizes), buckets)
    assert list(packed) == sorted({bucket_of(size, sorted(buckets)) for size in sizes})
    for bucket, rows in packed.items():
        assert all(getattr(rows, name).shape == (len(rows), bucket) for name in NAMES)
        assert rows.length == bucket
        smaller = max((each for each in buckets if each < bucket), default=0)
        assert all(len(tokens) > smaller for tokens, _ in unpacked(rows))


@given(sizes_and_buckets)
def test_documents_are_numbered_from_zero_without_a_gap_and_counted_from_their_first_token(
    case: tuple[list[int], list[int]],
):
    for rows in pack(documents_of(case[0]), case[1]).values():
        for row in range(len(rows)):
            numbers, positions = rows.documents[row].tolist(), rows.positions[row].tolist()
            used = [number for number in numbers if number != PADDING]
            assert numbers == used + [PADDING] * (rows.length - len(used))
            assert used == sorted(used)
            assert set(used) == set(range(max(used) + 1))
            seen: Counter[int] = Counter()
            for number, position in zip(used, positions, strict=False):
                assert position == seen[number]
                seen[number] += 1
            padding = rows.documents[row] == PADDING
            assert not rows.trainable[row, padding].any()
            assert not rows.tokens[row, padding].any()


@given(sizes_and_buckets)
def test_no_two_rows_of_a_bucket_would_fit_into_one(case: tuple[list[int], list[int]]):
    for rows in pack(documents_of(case[0]), case[1]).values():
        filled = sorted((rows.documents != PADDING).sum(1).tolist())
        assert len(filled) < 2 or filled[0] + filled[1] > rows.length


def test_each_document_goes_where_the_least_room_is_enough():
    packed = pack(documents_of([7, 5, 3, 5]), [10])
    assert [sorted(len(tokens) for tokens, _ in unpacked(row)) for row in by_row(packed[10])] == [[3, 7], [5, 5]]


def by_row(rows: Rows) -> list[Rows]:
    return [Rows(*(getattr(rows, name)[row : row + 1] for name in NAMES)) for row in range(len(rows))]


def test_with_many_documents_next_to_no_room_is_lost():
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 65, (20_000,), generator=generator).tolist()
    tokens, mask = torch.zeros(64, dtype=torch.int32), torch.ones(64, dtype=torch.bool)
    rows = pack([Encoded(tokens[:size], mask[:size]) for size in sizes], [64])[64]
    assert len(rows) <= 1.01 * sum(sizes) / 64 + 1


def test_rows_come_back_from_their_file(tmp_path: Path):
    packed = pack(documents_of([3, 9, 20, 2]), [10, 32])
    save_rows(tmp_path / "rows.safetensors", packed)
    back = load_rows(tmp_path / "rows.safetensors")
    assert list(back) == list(packed) == [10, 32]
    for bucket in packed:
        for name in NAMES:
            before, after = getattr(packed[bucket], name), getattr(back[bucket], name)
            assert torch.equal(before, after)
            assert before.dtype == after.dtype


def test_a_missing_file_of_rows_is_named(tmp_path: Path):
    with pytest.raises(StorageError, match=rf"^{tmp_path}/rows.safetensors: No such file"):
        load_rows(tmp_path / "rows.safetensors")


@pytest.mark.parametrize("content", [b"", b"no rows at all", None], ids=["empty", "not safetensors", "torn"])
def test_a_damaged_file_of_rows_is_named(tmp_path: Path, content: bytes | None):
    path = tmp_path / "rows.safetensors"
    save_rows(path, pack(documents_of([3]), [4]))
    path.write_bytes(path.read_bytes()[:-1] if content is None else content)
    with pytest.raises(DataError, match=rf"^{path}: not packed rows .*; remove it and run again$"):
        load_rows(path)


def test_a_full_disk_is_said_to_be_full_and_leaves_no_file(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("mount is not permitted here")
    try:
        rows = Rows(*(torch.zeros(1, 100_000, dtype=torch.int32) for _ in NAMES))
        with pytest.raises(OSError, match="No space left on device"):
            save_rows(tmp_path / "rows.safetensors", {100_000: rows})
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
