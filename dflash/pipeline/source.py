"""This project's own source as it is now: the commit, and what was changed since, for a run on another machine."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash.errors import UsageError, storage_error
from dflash.hosts import unpacking
from dflash.pipeline.keys import HOME

MOST_BYTES = 64_000_000
"""A checkout larger than this holds something that is no source."""

_ESSENTIAL = ("dflash", "envs", "pipelines")
"""What a run needs of a project that is in no git repository, where nothing says what else is source."""


@dataclass(frozen=True)
class Origin:
    """Where source comes from: its `commit` (None outside of git), and as a `patch`, as git makes one, what was changed
    since: tracked files, and others that are not ignored."""

    commit: str | None
    patch: bytes = b""

    @property
    def dirty(self) -> bool | None:
        """Whether it is not what was committed; None outside of git."""
        return bool(self.patch) if self.commit else None


def snapshot(home: Path = HOME) -> tuple[bytes, Origin]:
    """The source, as `unpacking.packed` makes it, and its origin. Of a git checkout it is the tracked files as they are
    now, and untracked ones that are not ignored.

    Raises:
        UsageError: it is larger than source is; names the largest file.
        StorageError: a file can not be read.
    """
    commit = _git(home, "rev-parse", "HEAD").strip().decode() or None
    names = _names(home)
    if not commit or not any(name.startswith("dflash/") for name in names):  # or of another repository around it
        commit, names = None, _essential(home)
    try:
        _refuse_large(home, names)
        return unpacking.packed(str(home), names), Origin(commit, _patch(home) if commit else b"")
    except OSError as failure:
        raise storage_error(failure, failure.filename or home) from failure


def _names(home: Path) -> list[str]:
    listed = _git(home, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split(b"\0")
    return sorted({os.fsdecode(name) for name in listed if name and (home / os.fsdecode(name)).is_file()})


def _essential(home: Path) -> list[str]:
    return [name for folder in _ESSENTIAL for name in unpacking.package_files(str(home / folder))]


def _refuse_large(home: Path, names: list[str]) -> None:
    sizes = {name: (home / name).stat().st_size for name in names}
    if (total := sum(sizes.values())) > MOST_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        what = f"the source to send has {total / 1e6:,.0f} MB, {sizes[largest] / 1e6:,.0f} of them in {largest}"
        cure = "move what is no source elsewhere, or let .gitignore name it"
        raise UsageError(what, where=str(home), cure=cure)


def _patch(home: Path) -> bytes:
    """All changes since the commit, new files too, without touching the repository's own index and objects."""
    if not _git(home, "status", "--porcelain"):
        return b""
    with tempfile.TemporaryDirectory(prefix="dflash-patch-") as name:
        objects = os.fsdecode(_git(home, "rev-parse", "--path-format=absolute", "--git-path", "objects").strip())
        apart = {
            "GIT_INDEX_FILE": f"{name}/index",
            "GIT_OBJECT_DIRECTORY": f"{name}/objects",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects,
        }
        Path(name, "objects").mkdir()
        _git(home, "read-tree", "HEAD", more=apart)
        _git(home, "add", "--all", more=apart)
        return _git(home, "diff", "--cached", "--binary", "HEAD", more=apart)


def _git(home: Path, *words: str, more: Mapping[str, str] | None = None) -> bytes:
    """What git says; nothing where it fails, or there is none."""
    command = ["git", "-C", str(home), *words]
    try:
        return subprocess.run(command, capture_output=True, check=True, env={**os.environ, **(more or {})}).stdout
    except (OSError, subprocess.SubprocessError):
        return b""
