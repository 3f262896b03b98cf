"""Which processes use a folder as their compile cache: nothing is put into it or moved away under them."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_VARIABLES = (b"TORCHINDUCTOR_CACHE_DIR", b"TRITON_CACHE_DIR")


def hold(folder: Path) -> int:
    """Have `folder` open, so that others see that this process uses it: what it sets in its own environment after its
    start is not seen from outside. The descriptor; the process keeps it to its end. Raises OSError."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


def holders(folder: Path, *, readers: bool = True) -> list[int]:
    """Other processes whose environment names `folder`, or that have it or something in it open or mapped; also when
    it has been deleted under them. Without `readers` one that only reads files of it, as a saver does, is none."""
    mark = os.fsencode(folder.resolve())
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) != os.getpid() and _holds(entry, mark, readers):
            found.append(int(entry.name))
    return sorted(found)


def _holds(entry: Path, mark: bytes, readers: bool) -> bool:
    with contextlib.suppress(OSError):
        for variable in (entry / "environ").read_bytes().split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name in _VARIABLES and value:
                place = os.path.join(os.fsencode(entry / "cwd"), value)  # it may be relative, or lead through a link
                if _within(os.path.realpath(place), mark):
                    return True
    with contextlib.suppress(OSError):
        if mark + b"/" in (entry / "maps").read_bytes():
            return True
    with contextlib.suppress(OSError):
        for descriptor in (entry / "fd").iterdir():
            with contextlib.suppress(OSError):
                if _within(os.fsencode(os.readlink(descriptor)).removesuffix(b" (deleted)"), mark) and (
                    readers or not _only_reads(descriptor)
                ):
                    return True
    return False


def _within(path: bytes, mark: bytes) -> bool:
    return path == mark or path.startswith(mark + b"/")


def _only_reads(descriptor: Path) -> bool:
    """Whether it is a file, not a folder, open for reading: /proc gives the link's owner a bit for each way."""
    return descriptor.is_file() and not descriptor.lstat().st_mode & stat.S_IWUSR
