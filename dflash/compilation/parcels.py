"""A folder of files as one archive, in parcels of about PARCEL bytes, each a zstd frame: all cores pack and unpack.

The manifest says which files lie in which parcel, one after the other, each with its size, mode and SHA-256, and the
SHA-256 of the frame. To unpack, the frame is hashed before anything is made of it, a tenth of the bytes that are in it;
zstd's own checksum of the content then tells a machine that packed or unpacked it wrongly. `check` hashes every file.

Not torch's portable artifacts (`torch.compiler.save_cache_artifacts`): on a CPU those lack the compiled kernels, so
that every graph was found and the C++ compiler still ran for 80 of 90 seconds, where a restored folder took 14; they
were six times larger; and each process would have to save and load its own, before it has threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from dflash.errors import DFlashError

PARCEL = 8 << 20
"""Bytes. A quarter of it loses a sixth of the compression: kernels are like one another."""
LEVEL = 3
"""zstd's own default. Level 2 packs a fourth faster, into a third more bytes; unpacking costs the same."""


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
    """A zstd frame: where it lies in the archive (bytes), the files in it, in order, and its SHA-256 (hex). One whose
    hash is not known is never unpacked.
    """

    start: int
    size: int
    files: tuple[File, ...]
    sha256: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values. Not by `asdict`, which takes a tenth of the time of a save."""
        return {**vars(self), "files": [dict(vars(file)) for file in self.files]}

    @staticmethod
    def from_json(plain: dict[str, Any]) -> Parcel:
        """What `to_json` gave."""
        return Parcel(plain["start"], plain["size"], tuple(File(**each) for each in plain["files"]), plain["sha256"])


def wanted(folder: Path) -> list[str]:
    """The files of a compile cache that are worth keeping, sorted: no locks, nothing half-written, no links out, and no
    kernels of Triton's, whose files name each other by whole paths. Inductor's entries have the same kernels in them,
    and put them in Triton's folder, with its path as it is then, when they are found; not where one is there already.
    """
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "locks" and not name.startswith("tmp.pid_"))
        if any(name.startswith("__grp__") for name in files):
            continue
        inside = os.path.relpath(place, folder)
        for name in files:
            if not name.endswith((".tmp", ".lock")) and stat.S_ISREG(os.lstat(f"{place}/{name}").st_mode):
                found.append(name if inside == "." else f"{inside}/{name}")
    return sorted(found)


class _Desk(threading.local):
    """Each thread's compressor and the memory where it gathers a parcel. Fresh memory for each would cost a fifth more,
    and most on a busy machine: pages that are given back are taken from all cores at once."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
        self.memory = bytearray(2 * PARCEL)

    def room(self, start: int, size: int) -> memoryview:
        """Bytes `start` to `start + size`. What lies before them stays."""
        if start + size > len(self.memory):
            larger = bytearray(start + size)
            larger[:start] = memoryview(self.memory)[:start]
            self.memory = larger
        return memoryview(self.memory)[start : start + size]


def pack(folder: Path, names: Sequence[str], archive: Path) -> list[Parcel]:
    """Write the named files of `folder` into `archive`; its parcels. Raises OSError."""
    groups, desk = list(_groups(folder, names)), _Desk()
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool, archive.open("wb") as out:
        parcels, start = [], 0
        for files, frame, sha256 in pool.map(lambda group: _packed(folder, group, desk), groups):
            out.write(frame)
            parcels.append(Parcel(start, len(frame), files, sha256))
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


def _packed(folder: Path, names: Sequence[str], desk: _Desk) -> tuple[tuple[File, ...], bytes, str]:
    files, size = [], 0
    for name in names:
        descriptor = os.open(f"{folder}/{name}", os.O_RDONLY)
        try:
            status = os.fstat(descriptor)
            content, got = desk.room(size, status.st_size), 0
            while got < len(content) and (more := os.readv(descriptor, [content[got:]])):
                got += more
        finally:
            os.close(descriptor)
        sha256 = hashlib.sha256(content[:got]).hexdigest()
        files.append(File(name, got, stat.S_IMODE(status.st_mode), sha256))
        size += got
    frame = desk.compressor.compress(desk.room(0, size))
    return tuple(files), frame, hashlib.sha256(frame).hexdigest()


def unpack(archive: Path, parcels: Sequence[Parcel], folder: Path) -> None:
    """Write every file below `folder`, which is new. Raises DamagedParcel or OSError.

    Nothing is synced: the archive is what lasts, and the files are read, and rewritten, as any compile cache is.
    """
    for place in sorted({os.path.dirname(file.path) for parcel in parcels for file in parcel.files}):
        os.makedirs(f"{folder}/{place}", exist_ok=True)
    _each(parcels, lambda parcel: _write_all(folder, _files_in(archive, parcel)))


def check(archive: Path, parcels: Sequence[Parcel]) -> None:
    """Hash every file of an archive without writing any. Raises DamagedParcel or OSError."""
    _each(parcels, lambda parcel: _check_all(archive, _files_in(archive, parcel)))


def _each(parcels: Sequence[Parcel], body: Callable[[Parcel], None]) -> None:
    """On all cores. A failure is raised, and no further parcel is begun."""
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        for _ in pool.map(body, parcels):
            pass


def _files_in(archive: Path, parcel: Parcel) -> Iterator[tuple[File, memoryview]]:
    """Each file with its content. Raises DamagedParcel before the first, or OSError."""
    with archive.open("rb") as file:
        file.seek(parcel.start)
        frame = file.read(parcel.size)
    size, content = sum(each.size for each in parcel.files), b""
    whole = hashlib.sha256(frame).hexdigest() == parcel.sha256
    with contextlib.suppress(zstandard.ZstdError):
        if whole and zstandard.frame_content_size(frame) == size:
            content = zstandard.ZstdDecompressor().decompress(frame)
    if not whole or len(content) != size:
        raise DamagedParcel(f"bytes {parcel.start} to {parcel.start + parcel.size} are damaged", where=str(archive))
    pieces = memoryview(content)
    start = 0
    for each in parcel.files:
        yield each, pieces[start : start + each.size]
        start += each.size


def _check_all(archive: Path, files: Iterable[tuple[File, memoryview]]) -> None:
    for each, content in files:
        if hashlib.sha256(content).hexdigest() != each.sha256:
            raise DamagedParcel(f"{each.path} does not have the hash it was saved with", where=str(archive))


def _write_all(folder: Path, files: Iterable[tuple[File, memoryview]]) -> None:
    for each, content in files:
        _write(f"{folder}/{each.path}", content, each.mode)


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
