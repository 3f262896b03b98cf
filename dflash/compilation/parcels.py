"""A folder of files as one archive, in parcels of about PARCEL bytes, each a zstd frame: all cores pack and unpack.

The manifest says which files lie in which parcel, one after the other, each with its size, mode and SHA-256. Bytes that
do not hash to what the manifest says are never left behind.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zstandard

from dflash.errors import DFlashError

PARCEL = 8 << 20
LEVEL = 3


class DamagedParcel(DFlashError):
    """Stored bytes are not what the manifest says."""

    exit_code = 8


@dataclass(frozen=True)
class File:
    """One file: its path relative to the folder, size in bytes, permission bits and SHA-256 (hex)."""

    path: str
    size: int
    mode: int
    sha256: str


@dataclass(frozen=True)
class Parcel:
    """A zstd frame: where it lies in the archive (bytes), and the files in it, in order."""

    start: int
    size: int
    files: tuple[File, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @staticmethod
    def from_json(plain: dict[str, Any]) -> Parcel:
        """What `to_json` gave."""
        return Parcel(plain["start"], plain["size"], tuple(File(**each) for each in plain["files"]))


def wanted(folder: Path) -> list[str]:
    """The files of a compile cache that are worth keeping, sorted: no locks, nothing half-written, no links out."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "locks" and not name.startswith("tmp.pid_"))
        inside = os.path.relpath(place, folder)
        for name in files:
            if not name.endswith((".tmp", ".lock")) and stat.S_ISREG(os.lstat(f"{place}/{name}").st_mode):
                found.append(name if inside == "." else f"{inside}/{name}")
    return sorted(found)


def pack(folder: Path, names: Sequence[str], archive: Path) -> list[Parcel]:
    """Write the named files of `folder` into `archive`; its parcels. Raises OSError."""
    groups = list(_groups(folder, names))
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool, archive.open("wb") as out:
        parcels, start = [], 0
        for files, frame in pool.map(lambda group: _packed(folder, group), groups):
            out.write(frame)
            parcels.append(Parcel(start, len(frame), files))
            start += len(frame)
        out.flush()
        os.fsync(out.fileno())
    return parcels


def _groups(folder: Path, names: Iterable[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for name in names:
        group.append(name)
        size += os.stat(f"{folder}/{name}").st_size
        if size >= PARCEL:
            yield group
            group, size = [], 0
    if group:
        yield group


def _packed(folder: Path, names: Sequence[str]) -> tuple[tuple[File, ...], bytes]:
    files, contents = [], []
    for name in names:
        descriptor = os.open(f"{folder}/{name}", os.O_RDONLY)
        try:
            status = os.fstat(descriptor)
            content = os.read(descriptor, status.st_size)
            while len(content) < status.st_size and (more := os.read(descriptor, status.st_size - len(content))):
                content += more
        finally:
            os.close(descriptor)
        files.append(File(name, len(content), stat.S_IMODE(status.st_mode), hashlib.sha256(content).hexdigest()))
        contents.append(content)
    return tuple(files), zstandard.ZstdCompressor(level=LEVEL).compress(b"".join(contents))


def unpack(archive: Path, parcels: Sequence[Parcel], folder: Path) -> None:
    """Write every file below `folder`, which is new. Raises DamagedParcel or OSError."""
    for place in sorted({os.path.dirname(file.path) for parcel in parcels for file in parcel.files}):
        (folder / place).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        for _ in pool.map(lambda parcel: _unpacked(archive, parcel, folder), parcels):
            pass


def check(archive: Path, parcels: Sequence[Parcel]) -> None:
    """Hash every file of an archive without writing any. Raises DamagedParcel or OSError."""
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        for _ in pool.map(lambda parcel: _unpacked(archive, parcel, None), parcels):
            pass


def _unpacked(archive: Path, parcel: Parcel, folder: Path | None) -> None:
    with archive.open("rb") as file:
        file.seek(parcel.start)
        frame = file.read(parcel.size)
    size = sum(each.size for each in parcel.files)
    try:
        content = memoryview(zstandard.ZstdDecompressor().decompress(frame, max_output_size=size) if size else b"")
    except zstandard.ZstdError as failure:
        raise DamagedParcel(
            f"bytes {parcel.start} to {parcel.start + parcel.size} are damaged", where=str(archive)
        ) from failure
    start = 0
    for each in parcel.files:
        piece = content[start : start + each.size]
        start += each.size
        if hashlib.sha256(piece).hexdigest() != each.sha256:
            raise DamagedParcel(f"{each.path} does not have the hash it was saved with", where=str(archive))
        if folder is not None:
            _write(f"{folder}/{each.path}", piece, each.mode)


def _write(path: str, content: memoryview, mode: int) -> None:
    """A new file, by the fewest calls: a cache has thousands."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
        if os.fstat(descriptor).st_mode & 0o7777 != mode:  # the process's umask
            os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
