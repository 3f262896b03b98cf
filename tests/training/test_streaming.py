"""Rows written as they come: the same file as all at once, in a memory that does not grow with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from dflash.training.batches import Batches
from dflash.training.encoding import Encoded
from dflash.training.packing import TENSORS, Rows, load_rows, pack, save_rows
from dflash.training.streaming import WINDOW, windows, writing_rows

BUCKETS = (100, 16, 48)


def documents(count: int) -> list[Encoded]:
    """Documents of 1 to 100 tokens, no two tokens of the set alike."""
    sizes = [1 + number * 37 % 100 for number in range(count)]
    starts = [sum(sizes[:number]) for number in range(count)]
    return [
        Encoded(torch.arange(start, start + size, dtype=torch.int32), torch.arange(size) % 3 > 0)
        for start, size in zip(starts, sizes, strict=True)
    ]


def written(path: Path, parts: Iterable[list[Encoded]]) -> dict[int, Rows]:
    with writing_rows(path) as add:
        for part in parts:
            add(pack(part, BUCKETS))
    return load_rows(path)


def test_windows_hold_all_documents_in_order_and_as_many_tokens_as_they_must():
    given = documents(200)
    found = list(windows(iter(given), 512))
    assert [id(each) for window in found for each in window] == [id(each) for each in given]
    sizes = [sum(len(each.tokens) for each in window) for window in found]
    assert all(512 <= size < 612 for size in sizes[:-1])
    assert len(sizes) > 10
    assert list(windows([], 512)) == []


def test_rows_written_at_once_make_the_file_that_safetensors_makes(tmp_path: Path):
    packed = pack(documents(60), BUCKETS)
    save_rows(tmp_path / "all.safetensors", packed)
    written(tmp_path / "streamed.safetensors", [documents(60)])
    assert (tmp_path / "streamed.safetensors").read_bytes() == (tmp_path / "all.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.safetensors", "streamed.safetensors"]


def test_rows_written_by_windows_are_the_windows_rows_one_after_the_other(tmp_path: Path):
    parts = list(windows(documents(200), 512))
    back = written(tmp_path / "rows.safetensors", parts)
    packed = [pack(part, BUCKETS) for part in parts]
    assert list(back) == sorted(BUCKETS)
    for bucket, rows in back.items():
        for name in TENSORS:
            whole = torch.cat([getattr(part[bucket], name) for part in packed if bucket in part])
            assert torch.equal(getattr(rows, name), whole)


def test_batches_deals_mapped_rows_as_it_deals_others(tmp_path: Path):
    packed = pack(documents(60), BUCKETS)
    mapped = written(tmp_path / "rows.safetensors", [documents(60)])
    for one, other in zip(*(iter_batches(rows) for rows in (packed, mapped)), strict=True):
        assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in (*TENSORS, "anchors"))


def iter_batches(rows: dict[int, Rows]):
    batches = Batches(rows, rows=2, anchors=4, seed=3)
    return [batches[index] for index in range(2 * batches.per_epoch)]


def test_little_room_is_lost_at_the_windows_ends():
    """Windows of as many rows as a real one has with rows of 3072 tokens."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(8, 257, (8_000,), generator=generator).tolist()
    tokens, mask = torch.zeros(256, dtype=torch.int32), torch.ones(256, dtype=torch.bool)
    given = [Encoded(tokens[:size], mask[:size]) for size in sizes]
    rows = sum(len(pack(window, [256])[256]) for window in windows(given, 256 * (WINDOW // 3072)))
    assert len(pack(given, [256])[256]) < rows <= 1.02 * sum(sizes) / 256


def test_a_failure_leaves_what_was_there(tmp_path: Path):
    path = tmp_path / "rows.safetensors"
    written(path, [documents(5)])
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        written(path, (documents(9 // (1 - number)) for number in range(2)))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.training.test_streaming import BUCKETS, documents, pack, writing_rows
with writing_rows(Path(sys.argv[1])) as add:
    add(pack(documents(9), BUCKETS))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_an_attempt_has_left_is_replaced(tmp_path: Path):
    left = tmp_path / ".rows.safetensors.parts" / "16-tokens"
    left.parent.mkdir()
    left.write_bytes(b"half a row")
    path = tmp_path / "rows.safetensors"
    assert list(written(path, [documents(5)])) == sorted(BUCKETS)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.nightly
def test_what_a_killed_process_leaves_is_no_file_of_rows_and_is_replaced(tmp_path: Path):
    path = tmp_path / "rows.safetensors"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL
    assert [left.name for left in tmp_path.iterdir()] == [".rows.safetensors.parts"]
    written(path, [documents(5)])
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_said_to_be_full_and_leaves_no_file(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    words = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(tmp_path)]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("mount is not permitted here")
    try:
        for count in (980, 4_000):  # full when the file is put together, and full while its parts grow
            rows = Rows(*(torch.zeros(count, 16, dtype=torch.int32) for _ in TENSORS))
            with (
                pytest.raises(OSError, match="No space left on device"),
                writing_rows(tmp_path / "rows.safetensors") as add,
            ):
                add({16: rows})
            assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
