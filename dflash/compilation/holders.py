"""Which processes use a folder as their compile cache: nothing is put into it or moved away under them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_VARIABLES = (b"TORCHINDUCTOR_CACHE_DIR", b"TRITON_CACHE_DIR")


def holders(folder: Path) -> list[int]:
    """Other processes whose environment names `folder`, or that have something in it open or mapped."""
    mark = os.fsencode(folder.resolve())
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) != os.getpid() and _holds(entry, mark):
            found.append(int(entry.name))
    return sorted(found)


def _holds(entry: Path, mark: bytes) -> bool:
    with contextlib.suppress(OSError):
        for variable in (entry / "environ").read_bytes().split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name in _VARIABLES and (value == mark or value.startswith(mark + b"/")):
                return True
    with contextlib.suppress(OSError):
        if mark + b"/" in (entry / "maps").read_bytes():
            return True
    with contextlib.suppress(OSError):
        for descriptor in (entry / "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.fsencode(os.readlink(descriptor)).startswith(mark + b"/"):
                    return True
    return False
