"""SHA-256 of files that seldom change, and other digests of them, remembered by all that tells when one has changed: a
library, a model's weights or a long training's metrics are read once, not once a run."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from dflash.atomic import sha256, write_json

_MEMORY = "hashes.json"


class Hashes:
    """Hashes of files, kept in ROOT/work/hashes.json. Use as a context manager; leaving it writes down what is new.

    A file counts as unchanged while its size, inode and both its times are: the time of the inode's change can be set
    back by no program. What can not be written down is hashed again next time; that is no failure of a run.
    """

    def __init__(self, root: Path) -> None:
        self._file = root / "work" / _MEMORY
        self._known: dict[str, list[object]] = {}
        self._is_new = False
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self._file.read_bytes())
            self._known = found if isinstance(found, dict) else {}

    def __enter__(self) -> Hashes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_new:
            there = {key: each for key, each in self._known.items() if os.path.exists(key.partition("\0")[0])}
            with contextlib.suppress(OSError):
                write_json(self._file, there)

    def of(self, path: str | Path) -> str:
        """The SHA-256 of a file in hex. Raises OSError."""
        return self._remembered(os.path.realpath(path), "", sha256)

    def digest(self, path: str | Path, way: str, make: Callable[[Path], str]) -> str:
        """What `make` says of a file; `way` names how it does that, and changes with it. Raises OSError, or what `make`
        does."""
        return self._remembered(os.path.realpath(path), f"\0{way}", make)

    def _remembered(self, name: str, way: str, make: Callable[[Path], str]) -> str:
        status = os.stat(name)
        signature = [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
        known = self._known.get(name + way)
        if isinstance(known, list) and known[:-1] == signature and isinstance(known[-1], str):
            return known[-1]
        found = make(Path(name))
        self._known[name + way] = [*signature, found]
        self._is_new = True
        return found
