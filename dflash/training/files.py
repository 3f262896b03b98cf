"""Data files: one, a folder of them or a pattern; plain, compressed, or Parquet.

Nothing is imported but the standard library, so that planning a run can name and hash what it will read.
"""

from __future__ import annotations

import glob
import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from dflash.atomic import sha256
from dflash.errors import DataError, storage_error

PARQUET = ".parquet"
ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".jsonl.zst", ".json.zst", PARQUET)
"""How the name of a data file in a folder ends. A file that is named itself may be called anything."""

_CHUNK = 2**20


def data_files(name: str) -> list[Path]:
    """The files that `name` stands for, in sorted order: itself, a folder's data files, or a pattern's matches.

    Raises:
        DataError: the folder or the pattern has no data file.
        StorageError: there is no such file.
    """
    path = Path(name)
    try:
        if path.is_dir():
            found = sorted(each for each in path.iterdir() if each.is_file() and each.name.endswith(ENDINGS))
            missing = DataError(
                "no data file is in this folder", where=name, cure=f"name one that ends in {ENDINGS[0]}"
            )
        elif glob.has_magic(name) and not path.exists():
            found = sorted(each for each in map(Path, glob.glob(name, recursive=True)) if each.is_file())
            missing = DataError("no file matches this pattern", where=name, cure="list what is there with ls")
        else:
            path.stat()
            return [path]
    except OSError as failure:
        raise storage_error(failure, path) from failure
    if not found:
        raise missing
    return found


def fingerprint(name: str) -> dict[str, str]:
    """The SHA-256 of each file that `name` stands for, by path.

    Raises:
        DataError, StorageError: see `data_files`.
    """
    digests = {}
    for path in data_files(name):
        try:
            digests[str(path)] = sha256(path)
        except OSError as failure:
            raise storage_error(failure, path) from failure
    return digests


def read_lines(path: Path) -> Iterator[tuple[bytes, int]]:
    """The lines of a file, unpacked if its name ends in .gz or .zst, and how many of its bytes were read by then.

    Raises:
        DataError: the compressed data is damaged, or cut short.
        StorageError: the file can not be read.
    """
    try:
        with path.open("rb") as file:
            lines: Iterable[bytes] = file
            if path.suffix == ".gz":
                lines = gzip.GzipFile(fileobj=file)
            elif path.suffix == ".zst":
                lines = _split(_unpacked(iter(lambda: file.read(_CHUNK), b"")))
            for line in lines:
                yield line, file.tell()
    except (gzip.BadGzipFile, EOFError, zlib.error, _Damaged) as failure:
        raise DataError(f"not whole compressed data ({failure})", where=str(path), cure="copy it again") from failure
    except OSError as failure:
        raise storage_error(failure, path) from failure


class _Damaged(Exception):
    pass


def _unpacked(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Zstandard frames one after the other. The library's own reader takes a frame that is cut short for whole."""
    try:
        import zstandard
    except ImportError as failure:
        raise DataError("zstandard is not installed", cure="install it, or unpack the file") from failure
    frame = zstandard.ZstdDecompressor().decompressobj()
    begun = False
    try:
        for chunk in chunks:
            while chunk:
                if frame.eof:
                    frame = zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(chunk)
                begun, chunk = True, frame.unused_data
    except zstandard.ZstdError as failure:
        raise _Damaged(failure) from failure
    if begun and not frame.eof:
        raise _Damaged("it is cut short")


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest
