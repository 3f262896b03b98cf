"""Data files: which they are, what is in the compressed ones, and what is said of the damaged."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from dflash.errors import DataError, StorageError
from dflash.training.files import data_files, fingerprint, read_lines
from dflash.training.records import Records, read_records

LINES = "".join(json.dumps({"id": str(number), "text": f"text {number} é"}) + "\n" for number in range(1_500)).encode()


def frames(content: bytes) -> bytes:
    """Two Zstandard frames, one after the other, as `zstd -c a b` leaves them; the first ends within a line."""
    cut = len(content) // 2 + 3
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in (content[:cut], content[cut:]))


PACKERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": frames}


def test_a_folder_is_its_data_files_in_sorted_order(tmp_path: Path):
    names = ["b.jsonl", "a.jsonl.gz", "c.parquet", "a.json.zst"]
    for name in [*names, "README.md", "d.jsonl.tmp", ".jsonl~"]:
        (tmp_path / name).touch()
    (tmp_path / "e.jsonl").mkdir()
    assert [path.name for path in data_files(str(tmp_path))] == sorted(names)


def test_a_pattern_is_its_matches_in_sorted_order(tmp_path: Path):
    for name in ("x/b.txt", "x/a.txt", "y/deep/a.txt", "y/b.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert data_files(f"{tmp_path}/**/*.txt") == [tmp_path / name for name in ("x/a.txt", "x/b.txt", "y/deep/a.txt")]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path):
    path = tmp_path / "data[1].jsonl"
    path.touch()
    assert data_files(str(path)) == [path]


def test_what_stands_for_no_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=rf"^{tmp_path}: no data file is in this folder; name one that ends in .jsonl"):
        data_files(str(tmp_path))
    with pytest.raises(DataError, match="no file matches this pattern; list what is there with ls"):
        data_files(f"{tmp_path}/*.jsonl")
    with pytest.raises(StorageError, match=rf"^{tmp_path}/none: No such file"):
        data_files(f"{tmp_path}/none")


def test_several_files_are_one_sequence_of_records_whatever_they_are_packed_with(tmp_path: Path):
    for name, pack in (("a.jsonl", bytes), ("b.jsonl.gz", gzip.compress), ("c.jsonl.zst", frames)):
        (tmp_path / name).write_bytes(pack(LINES))
    records = Records(data_files(str(tmp_path)))
    found = list(records)
    assert [record.id for record in found] == [str(number) for number in range(1_500)] * 3
    assert found[-1].where == f"{tmp_path / 'c.jsonl.zst'}:1500"
    assert found[-1].file == str(tmp_path / "c.jsonl.zst")
    assert found == list(records)


def test_the_bytes_read_are_counted_over_all_files(tmp_path: Path):
    for name, pack in (("a.jsonl", bytes), ("b.jsonl.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(LINES))
    records = Records(data_files(str(tmp_path)))
    seen = [records.done for _ in records]
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[1_499] <= len(LINES) < seen[1_500] <= seen[-1] == records.total


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-5],
        lambda data: data[: len(data) // 2],
        lambda data: b"no such thing" + data,
        lambda _: LINES,
    ],
    ids=["cut at the end", "cut in the middle", "another beginning", "not packed"],
)
def test_compressed_data_that_is_not_whole_is_named(tmp_path: Path, ending: str, damage: Callable[[bytes], bytes]):
    path = tmp_path / f"data.jsonl{ending}"
    path.write_bytes(damage(PACKERS[ending](LINES)))
    with pytest.raises(DataError, match=rf"^{path}: not whole compressed data \(.*\); copy it again$"):
        list(read_records(path))


def test_compressed_frames_that_end_between_two_reads_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "data.jsonl.zst"
    path.write_bytes(frames(LINES[:900]) * 2)
    for size in range(1, 400, 7):
        monkeypatch.setattr("dflash.training.files._CHUNK", size)
        lines = [line.rstrip(b"\n") for line, _ in read_lines(path)]
        assert b"\n".join(lines) == LINES[:900] * 2


def test_an_edited_file_has_another_fingerprint_at_the_same_size_and_time(tmp_path: Path):
    one, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    one.write_bytes(b"one")
    other.write_bytes(b"other")
    before, stat = fingerprint(str(tmp_path)), one.stat()
    assert before == {str(one): hashlib.sha256(b"one").hexdigest(), str(other): hashlib.sha256(b"other").hexdigest()}
    one.write_bytes(b"two")
    os.utime(one, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = fingerprint(str(tmp_path))
    assert {path for path in after if after[path] != before[path]} == {str(one)}
