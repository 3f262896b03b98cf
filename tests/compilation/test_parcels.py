"""An archive gives back the files that were put into it, or says that it can not."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from dflash.compilation.parcels import DamagedParcel, Parcel, check, pack, unpack, wanted
from tests.compilation.caches import fill, tree


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return fill(tmp_path / "cache", dense=True)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "files.zst"


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def written(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("size", [1, 1000, 100_000, 8 << 20])
def test_the_files_come_back_whatever_the_size_of_a_parcel(
    cache: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
):
    monkeypatch.setattr("dflash.compilation.parcels.PARCEL", size)
    parcels = pack(cache, wanted(cache), archive)
    if size <= 1000:
        assert len(parcels) > 20
    check(archive, parcels)
    unpack(archive, parcels, tmp_path / "back")
    assert tree(tmp_path / "back") == tree(cache)


def test_parcels_lie_one_after_the_other_and_any_zstd_reads_them(
    cache: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dflash.compilation.parcels.PARCEL", 100_000)
    parcels = pack(cache, wanted(cache), archive)
    assert [each.start for each in parcels] == [sum(each.size for each in parcels[:n]) for n in range(len(parcels))]
    assert archive.stat().st_size == sum(each.size for each in parcels)
    with zstandard.ZstdDecompressor().stream_reader(archive.open("rb"), read_across_frames=True) as reader:
        assert reader.read() == b"".join((cache / name).read_bytes() for name in wanted(cache))


def test_a_parcel_is_plain_values_and_back(cache: Path, archive: Path):
    for parcel in pack(cache, wanted(cache), archive):
        assert Parcel.from_json(parcel.to_json()) == parcel


@pytest.mark.usefixtures("umask")
def test_modes_come_back_whatever_the_umask(cache: Path, archive: Path, tmp_path: Path):
    (cache / "shared").write_text("read by all, written by a group")
    (cache / "shared").chmod(0o664)
    unpack(archive, pack(cache, wanted(cache), archive), tmp_path / "back")
    assert stat.S_IMODE((tmp_path / "back" / "shared").stat().st_mode) == 0o664
    assert tree(tmp_path / "back") == tree(cache)


def test_nothing_makes_an_empty_archive(archive: Path, tmp_path: Path):
    assert pack(tmp_path, [], archive) == []
    assert archive.read_bytes() == b""
    unpack(archive, [], tmp_path / "back")


def test_a_file_larger_than_a_parcel_lies_beside_small_ones(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also where a thread packs a small parcel after a large one: nothing of the large one is left in it."""
    monkeypatch.setattr("dflash.compilation.parcels.PARCEL", 1000)
    cache = tmp_path / "cache"
    cache.mkdir()
    for number, size in enumerate((10, 300_000, 0, 990, 20, 100_000, 5)):
        (cache / f"{number}").write_bytes(os.urandom(size))
    parcels = pack(cache, wanted(cache), archive)
    assert [[file.size for file in each.files] for each in parcels] == [[10, 300_000], [0, 990, 20], [100_000], [5]]
    check(archive, parcels)
    unpack(archive, parcels, tmp_path / "back")
    assert tree(tmp_path / "back") == tree(cache)


# --- damage


def damaged(archive: Path, place: int) -> None:
    content = bytearray(archive.read_bytes())
    content[place] ^= 1
    archive.write_bytes(content)


def test_no_file_of_a_damaged_parcel_is_written(cache: Path, archive: Path, tmp_path: Path):
    """Wherever the bit is: in the frame's header, a block, or the checksum at its end."""
    parcels = pack(cache, wanted(cache), archive)
    size = archive.stat().st_size
    assert len(parcels) == 1
    for place in (0, 5, size // 3, size // 2, size - 5, size - 1):
        damaged(archive, place)
        with pytest.raises(DamagedParcel, match=f"bytes 0 to {size} are damaged"):
            unpack(archive, parcels, tmp_path / "back")
        with pytest.raises(DamagedParcel):
            check(archive, parcels)
        assert written(tmp_path / "back") == []
        damaged(archive, place)
    check(archive, parcels)


def test_a_shortened_archive_is_damaged(cache: Path, archive: Path, tmp_path: Path):
    parcels = pack(cache, wanted(cache), archive)
    os.truncate(archive, archive.stat().st_size - 1)
    with pytest.raises(DamagedParcel):
        unpack(archive, parcels, tmp_path / "back")


def test_a_parcel_whose_hash_is_not_known_is_not_unpacked(cache: Path, archive: Path, tmp_path: Path):
    (parcel,) = pack(cache, wanted(cache), archive)
    with pytest.raises(DamagedParcel):
        unpack(archive, [replace(parcel, sha256="")], tmp_path / "back")


def framed(archive: Path, parcel: Parcel, frame: bytes) -> Parcel:
    """The parcel with another frame, rightly hashed: packed wrongly, then."""
    archive.write_bytes(frame)
    return replace(parcel, size=len(frame), sha256=hashlib.sha256(frame).hexdigest())


def test_a_frame_that_was_packed_wrongly_is_found_by_its_own_checksum(cache: Path, archive: Path, tmp_path: Path):
    (parcel,) = pack(cache, wanted(cache), archive)
    frame = bytearray(archive.read_bytes())
    frame[-1] ^= 1
    with pytest.raises(DamagedParcel):
        unpack(archive, [framed(archive, parcel, bytes(frame))], tmp_path / "back")
    assert written(tmp_path / "back") == []


@pytest.mark.parametrize("size", [0, 1, 1 << 26, None], ids=["empty", "short", "huge", "none"])
def test_a_frame_of_another_size_is_not_unpacked(cache: Path, archive: Path, tmp_path: Path, size: int | None):
    (parcel,) = pack(cache, wanted(cache), archive)
    frame = b"no frame" if size is None else zstandard.ZstdCompressor().compress(bytes(size))
    with pytest.raises(DamagedParcel):
        unpack(archive, [framed(archive, parcel, frame)], tmp_path / "back")
    assert written(tmp_path / "back") == []


def test_check_hashes_every_file_not_only_frames(cache: Path, archive: Path):
    (parcel,) = pack(cache, wanted(cache), archive)
    other = replace(parcel.files[3], sha256="0" * 64)
    wrong = replace(parcel, files=(*parcel.files[:3], other, *parcel.files[4:]))
    with pytest.raises(DamagedParcel, match=f"{other.path} does not have the hash it was saved with"):
        check(archive, [wrong])


def test_what_is_there_is_never_overwritten(cache: Path, archive: Path, tmp_path: Path):
    parcels = pack(cache, wanted(cache), archive)
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "empty").write_text("mine")
    with pytest.raises(FileExistsError):
        unpack(archive, parcels, tmp_path / "back")
    assert (tmp_path / "back" / "empty").read_text() == "mine"
