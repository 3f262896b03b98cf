"""This project's own source as it is now: the commit, and what was changed since. A run keeps both, so that it can be
done again, and one on another machine takes them along."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.atomic import whole_file, write_json
from dflash.errors import DataError, DFlashError, UsageError, storage_error
from dflash.hosts import unpacking
from dflash.pipeline.keys import HOME
from dflash.pipeline.provenance.variables import without_credentials

MOST_BYTES = 64_000_000
"""A checkout larger than this holds something that is no source."""

_ESSENTIAL = ("dflash", "envs", "pipelines")
"""What a run needs of a project that is in no git repository, where nothing says what else is source."""


@dataclass(frozen=True)
class Origin:
    """Where source comes from: its `commit` (None outside of git), and as a `patch`, as git makes one, what was changed
    since: tracked files, and others that are not ignored; None where that could not be told. `remote` is where the
    repository came from, without who asks there, and `digest` is what all the files together are called where they were
    sent (unpacking.py)."""

    commit: str | None
    patch: bytes | None = b""
    remote: str | None = None
    digest: str | None = None

    @property
    def dirty(self) -> bool | None:
        """Whether it is not what was committed; None outside of git."""
        return self.patch != b"" if self.commit else None

    def to_json(self) -> dict[str, Any]:
        """As a record has it: of the patch, its hash."""
        patch = hashlib.sha256(self.patch).hexdigest() if self.patch else None
        told = {"commit": self.commit, "remote": self.remote, "dirty": self.dirty}
        return {**told, "patch": patch, "digest": self.digest}

    def keep(self, folder: Path) -> None:
        """Write it into a run's folder: source.json and, where something was changed, source.patch. Raises OSError."""
        if self.patch:
            with whole_file(folder / PATCH) as draft:
                draft.write_bytes(self.patch)
        write_json(folder / SOURCE, self.to_json())


SOURCE, PATCH = "source.json", "source.patch"


def origin_of(folder: Path) -> Origin:
    """Where the source of a run came from, as its folder says. Raises DataError where that is damaged, or
    StorageError."""
    try:
        told = json.loads((folder / SOURCE).read_bytes())
        patch = folder / PATCH
        content = patch.read_bytes() if patch.exists() else b""
        if "patch" in told and told["patch"] != (hashlib.sha256(content).hexdigest() if content else None):
            raise ValueError(PATCH)
        is_kept = bool(content) == bool(told.get("dirty", content))
        return Origin(told["commit"], content if is_kept else None, told.get("remote"), told.get("digest"))
    except (ValueError, KeyError, TypeError, AttributeError):
        cure = "./inv train with the same options starts anew, and skips what is finished"
        raise DataError("is damaged, or its source.patch is", where=str(folder / SOURCE), cure=cure) from None
    except OSError as failure:
        raise storage_error(failure, failure.filename or folder) from failure


def origin(home: Path = HOME, without: Collection[Path] = ()) -> Origin:
    """Where the source that runs here comes from, files `without` left out, as of `snapshot`. What can not be told, by
    git or of files that can not be read or are too large, is None: a run goes on without it. A checkout in which
    nothing was changed is asked only that."""
    try:
        commit = git(home, "rev-parse", "HEAD", "HEAD:./dflash").split()[0].decode()
        differs = git(home, "status", "--porcelain", "--untracked-files=all", more=_UNLOCKED)
    except DFlashError:
        return Origin(None)
    if not differs:
        return Origin(commit, b"", _remote(home))
    try:
        return snapshot(home, without)[1]
    except DFlashError:
        return Origin(commit, None, _remote(home))


def snapshot(home: Path = HOME, without: Collection[Path] = ()) -> tuple[bytes, Origin]:
    """The source, as `unpacking.packed` makes it, and its origin. Of a git checkout it is the tracked files as they are
    now, and untracked ones that are neither ignored nor among the files `without`, which go along as data.

    Raises:
        UsageError: it is larger than source is; names the largest file. A link leads out of it. Git fails.
        StorageError: a file can not be read.
    """
    commit, names = _told(home, without)
    try:
        _refuse_large(home, names)
        _refuse_links_out(home, names)
        content = unpacking.packed(str(home), names)
        patch, remote = (_patch(home, names), _remote(home)) if commit else (b"", None)
        return content, Origin(commit, patch, remote, unpacking.digest(content))
    except OSError as failure:
        raise storage_error(failure, failure.filename or home) from failure


def changed(home: Path = HOME, without: Collection[Path] = ()) -> list[tuple[str, bytes]]:
    """What a patch of the source shows, each by its name: files that were changed since the commit, or are new and not
    ignored nor among the files `without`, as they are now, and what was changed as it was. Raises UsageError where git
    fails, or OSError."""
    commit, names = _told(home, without)
    found: list[tuple[str, bytes]] = []
    if not commit:
        return found
    with _index_of(home, names) as apart:
        differ = ("diff-index", "--cached", "-z", "--relative", "--no-renames", "--ignore-submodules=all", "HEAD")
        words = [os.fsdecode(word) for word in git(home, *differ, more=apart).split(b"\0")]
        for told, name in zip(words[::2], words[1::2], strict=False):
            before, after = told.split()[2:4]
            if before != after:  # else it can only be run now, or no more
                found += [(name, _blob(home, after, apart)), (name + AS_COMMITTED, _blob(home, before, apart))]
    return found


AS_COMMITTED = " (as it was committed)"
_UNLOCKED = {"GIT_OPTIONAL_LOCKS": "0"}  # somebody may be committing


def _blob(home: Path, name: str, index: Mapping[str, str]) -> bytes:
    """Of a file, or of a link, as git has it; nothing of what is not there."""
    return git(home, "cat-file", "blob", name, more=index) if set(name) != {"0"} else b""


def _told(home: Path, without: Collection[Path]) -> tuple[str | None, list[str]]:
    """The commit and the names of the files that are source; None where no git tells them."""
    commit = _commit(home)
    tracked = _listed(home, "--cached") if commit else []
    if any(name.startswith("dflash/") for name in tracked):
        return commit, sorted({name for name in tracked + _untracked(home, without) if _is_file(home, name)})
    return None, _essential(home)  # or it is of another repository around it


def _untracked(home: Path, without: Collection[Path]) -> list[str]:
    data = {os.path.realpath(path) for path in without}
    others = _listed(home, "--others", "--exclude-standard")
    return [name for name in others if os.path.realpath(home / name) not in data]


def _commit(home: Path) -> str | None:
    try:
        return git(home, "rev-parse", "HEAD").strip().decode()
    except UsageError:
        if (home / ".git").exists():
            raise
        return None


def _remote(home: Path) -> str | None:
    """The address of `origin`, or else of the first remote that git names."""
    try:
        lines = git(home, "config", "--get-regexp", r"^remote\..*\.url$").decode(errors="replace").splitlines()
    except UsageError:  # there is none
        return None
    found = dict(line.split(" ", 1) for line in lines if " " in line)
    address = found.get("remote.origin.url", next(iter(found.values()), None))
    return without_credentials(address) if address else None


def _listed(home: Path, *which: str) -> list[str]:
    return [os.fsdecode(name) for name in git(home, "ls-files", "-z", *which).split(b"\0") if name]


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


def _patch(home: Path, names: Collection[str]) -> bytes:
    """What makes of the commit the files `names`. By plumbing, so that a person's settings for how git shows
    differences change nothing in it."""
    with _index_of(home, names) as apart:
        shown = ("--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/")
        without = "--ignore-submodules=all"  # which are not sent
        return git(home, "diff-index", "--cached", *shown, without, "HEAD", more=apart)


@contextlib.contextmanager
def _index_of(home: Path, names: Collection[str]) -> Iterator[dict[str, str]]:
    """Variables with which git's index is the files `names` as they are now, found without touching the repository's
    own index and objects: that one may hide what was changed."""

    def index(names: Iterable[str], *how: str) -> None:
        paths = b"".join(os.fsencode(name) + b"\0" for name in names)
        git(home, "update-index", *how, "-z", "--stdin", more=apart, stdin=paths)

    with index_apart(home) as apart:
        git(home, "read-tree", "HEAD", more=apart)
        committed = git(home, "ls-files", "-z", more=apart).split(b"\0")  # the repository's own index may lack some
        index(sorted({os.fsdecode(name) for name in committed if name} - {*names}), "--force-remove")
        index(names, "--add", "--replace")
        yield apart


@contextlib.contextmanager
def index_apart(home: Path) -> Iterator[dict[str, str]]:
    """Variables with which git takes an index of its own, empty at first, and writes no object into the repository."""
    with tempfile.TemporaryDirectory(prefix="dflash-index-") as name:
        objects = home / os.fsdecode(git(home, "rev-parse", "--git-path", "objects").strip())
        Path(name, "objects", "info").mkdir(parents=True)
        Path(name, "objects", "info", "alternates").write_bytes(os.fsencode(objects.absolute()) + b"\n")
        yield {"GIT_INDEX_FILE": f"{name}/index", "GIT_OBJECT_DIRECTORY": f"{name}/objects"}


def git(home: Path, *words: str, more: Mapping[str, str] | None = None, stdin: bytes = b"") -> bytes:
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
