"""This project's own source as it is now: the commit, and what was changed since, for a run on another machine."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping
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


def snapshot(home: Path = HOME, without: Collection[Path] = ()) -> tuple[bytes, Origin]:
    """The source, as `unpacking.packed` makes it, and its origin. Of a git checkout it is the tracked files as they are
    now, and untracked ones that are neither ignored nor among the files `without`, which go along as data.

    Raises:
        UsageError: it is larger than source is; names the largest file. A link leads out of it. Git fails.
        StorageError: a file can not be read.
    """
    commit = _commit(home)
    tracked = _listed(home, "--cached") if commit else []
    if any(name.startswith("dflash/") for name in tracked):
        data = {os.path.realpath(path) for path in without}
        others = _listed(home, "--others", "--exclude-standard")
        others = [name for name in others if os.path.realpath(home / name) not in data]
        names = sorted({name for name in tracked + others if _is_file(home, name)})
    else:  # or it is of another repository around it
        commit, names = None, _essential(home)
    try:
        _refuse_large(home, names)
        _refuse_links_out(home, names)
        return unpacking.packed(str(home), names), Origin(commit, _patch(home, tracked, names) if commit else b"")
    except OSError as failure:
        raise storage_error(failure, failure.filename or home) from failure


def _commit(home: Path) -> str | None:
    try:
        return _git(home, "rev-parse", "HEAD").strip().decode()
    except UsageError:
        if (home / ".git").exists():
            raise
        return None


def _listed(home: Path, *which: str) -> list[str]:
    return [os.fsdecode(name) for name in _git(home, "ls-files", "-z", *which).split(b"\0") if name]


def _is_file(home: Path, name: str) -> bool:
    """Whether it is a file, or a link, that is not in a folder which is a link: there it is another one."""
    path, folders = home / name, list(Path(name).parents)[:-1]
    return (path.is_symlink() or path.is_file()) and not any((home / folder).is_symlink() for folder in folders)


def _essential(home: Path) -> list[str]:
    return [name for folder in _ESSENTIAL for name in unpacking.package_files(str(home / folder))]


def _refuse_large(home: Path, names: list[str]) -> None:
    sizes = {name: (home / name).lstat().st_size for name in names}
    if (total := sum(sizes.values())) > MOST_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        what = f"the source to send has {total / 1e6:,.0f} MB, {sizes[largest] / 1e6:,.0f} of them in {largest}"
        cure = "move what is no source elsewhere, or let .gitignore name it"
        raise UsageError(what, where=str(home), cure=cure)


def _refuse_links_out(home: Path, names: list[str]) -> None:
    """A link is sent as one. What it leads to elsewhere is not there, or is another file."""
    for name in names:
        if (home / name).is_symlink():
            target = os.readlink(home / name)
            if os.path.isabs(target) or os.path.normpath(Path(name).parent / target).split("/")[0] == "..":
                cure = "put there what it leads to, make it a relative link within, or let .gitignore name it"
                raise UsageError(f"{name} is a link that leads out of the source", where=str(home), cure=cure)


def _patch(home: Path, tracked: list[str], names: list[str]) -> bytes:
    """What makes of the commit the files `names`, found without touching the repository's own index and objects. By
    plumbing, so that a person's settings for how git shows differences change nothing in it."""

    def index(names: Iterable[str], *how: str) -> None:
        paths = b"".join(os.fsencode(name) + b"\0" for name in names)
        _git(home, "update-index", *how, "-z", "--stdin", more=apart, stdin=paths)

    with tempfile.TemporaryDirectory(prefix="dflash-patch-") as name:
        objects = home / os.fsdecode(_git(home, "rev-parse", "--git-path", "objects").strip())
        Path(name, "objects", "info").mkdir(parents=True)
        Path(name, "objects", "info", "alternates").write_bytes(os.fsencode(objects.absolute()) + b"\n")
        apart = {"GIT_INDEX_FILE": f"{name}/index", "GIT_OBJECT_DIRECTORY": f"{name}/objects"}
        _git(home, "read-tree", "HEAD", more=apart)
        index(sorted({*tracked} - {*names}), "--force-remove")
        index(names, "--add", "--replace")
        shown = ("--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/")
        without = "--ignore-submodules=all"  # which are not sent
        return _git(home, "diff-index", "--cached", *shown, without, "HEAD", more=apart)


def _git(home: Path, *words: str, more: Mapping[str, str] | None = None, stdin: bytes = b"") -> bytes:
    """What git says. Raises UsageError with its words where it fails, or there is none."""
    command = ["git", "-C", str(home), "-c", "core.safecrlf=false", *words]
    environ = {**os.environ, "LC_ALL": "C", **(more or {})}
    try:
        return subprocess.run(command, input=stdin, capture_output=True, check=True, env=environ).stdout
    except FileNotFoundError:
        said = "there is no git on this machine"
    except subprocess.CalledProcessError as failure:
        lines = failure.stderr.decode(errors="replace").strip().splitlines()
        said = lines[0] if lines else f"it ended with {failure.returncode}"
    what = f"what this source is can not be told: git {words[0]}: {said}"
    raise UsageError(what, where=str(home), cure="make git work there: a run's record names the commit that it is of")
