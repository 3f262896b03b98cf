"""Who needs which snapshot: a small file for each name, with the id of the one that must stay."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from dflash.atomic import whole_file
from dflash.errors import UsageError


class Pins:
    """The pins in a folder, which need not be there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, name: str, identity: str) -> None:
        """Pin a snapshot for `name`. Raises UsageError for a name that can not be one, or OSError."""
        with whole_file(self._file(name)) as draft:
            draft.write_text(identity)

    def release(self, name: str, identity: str) -> None:
        """Let go of a snapshot that `name` had pinned. Raises as `keep`, also when it has pinned another or none."""
        file, found = self._file(name), ""
        with contextlib.suppress(FileNotFoundError):
            found = file.read_text().strip()
        if found != identity:
            what = f"{name} does not keep snapshot {identity}, but {found or 'none'}"
            raise UsageError(what, where=str(self.folder), cure="name the one that it keeps" if found else None)
        file.unlink(missing_ok=True)

    def by_snapshot(self) -> dict[str, list[str]]:
        """Names by the snapshot that they keep. Raises OSError."""
        found: dict[str, list[str]] = {}
        for path in sorted(self.folder.glob("*")) if self.folder.is_dir() else []:
            if not path.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # let go of, just now
                    found.setdefault(path.read_text().strip(), []).append(path.name)
        return found

    def _file(self, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            cure = "use letters, digits, '.', '_' and '-'"
            raise UsageError(f"{name!r} can not be the name of a pin", where="--for-run", cure=cure)
        return self.folder / name
