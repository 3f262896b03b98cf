"""The source that a run was of, once more: its commit from the repository, and the patch that the run kept."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash.errors import DataError, UsageError
from dflash.hosts import unpacking
from dflash.pipeline.keys import HOME
from dflash.pipeline.source import Origin, git, index_apart, origin_of


@dataclass(frozen=True)
class Restored:
    """The source in a folder, as `unpacking.packed` makes it, and its origin."""

    folder: Path
    content: bytes
    origin: Origin


@contextlib.contextmanager
def restored(run: Path, home: Path = HOME) -> Iterator[Restored]:
    """The source of the run in the folder `run`, in a folder that goes with the block. A commit that is not in the
    repository `home` any more is asked of its remote.

    Raises:
        UsageError: the run does not say what it was of, or its commit is nowhere.
        DataError: what the run kept is damaged, or does not give the source that ran.
        StorageError: it can not be read.
    """
    origin = _known(run)
    _require(home, origin, run.name)
    with tempfile.TemporaryDirectory(prefix="dflash-source-") as name:
        folder, files = _written(home, origin, Path(name), run)
        content = unpacking.packed(str(folder), [file for file in files if os.path.lexists(folder / file)])
        if origin.digest not in (None, digest := unpacking.digest(content)):
            what = f"its commit and patch give the source {digest}, not {origin.digest}, which ran"
            cure = "git may be set to change files as it writes them: look at core.autocrlf and at filters"
            raise DataError(what, where=str(run), cure=cure)
        yield Restored(folder, content, origin)


def _written(home: Path, origin: Origin, place: Path, run: Path) -> tuple[Path, list[str]]:
    """Write the commit and the patch below `place`: the project's folder there, which may be one of a larger
    repository, and the files in it."""
    assert origin.commit is not None
    with index_apart(home) as apart:
        git(home, "read-tree", origin.commit, more=apart)
        if origin.patch:
            try:
                git(home, "apply", "--cached", "--whitespace=nowarn", more=apart, stdin=origin.patch)
            except UsageError as failure:
                what = f"its source.patch does not fit its commit: {failure.what}"
                raise DataError(what, where=str(run), cure="the run can not be done again from here") from failure
        git(home, "checkout-index", "--all", "--quiet", f"--prefix={place}/", more=apart)
        files = [os.fsdecode(file) for file in git(home, "ls-files", "-z", more=apart).split(b"\0") if file]
        below = os.fsdecode(git(home, "rev-parse", "--show-prefix").removesuffix(b"\n"))
    return place / below, files


def _known(run: Path) -> Origin:
    if not (run / "source.json").exists():
        what = f"run {run.name} is from before runs kept their source"
        raise UsageError(what, where=str(run), cure="check out its commit, and use ./inv train with the same options")
    origin = origin_of(run)
    if origin.commit is None:
        what = f"run {run.name} was of a source that no commit names"
        raise UsageError(what, where=str(run), cure="use ./inv train; what is run from a git checkout can be replayed")
    if origin.patch is None:
        what = f"what was changed since the commit that run {run.name} was of was not kept"
        cure = "commit it, or let .gitignore name what is no source, before a run that is to be done again"
        raise UsageError(what, where=str(run), cure=cure)
    return origin


def _require(home: Path, origin: Origin, run: str) -> None:
    """Have the commit in the repository; nothing else there is changed."""
    assert origin.commit is not None
    with contextlib.suppress(UsageError):
        git(home, "cat-file", "-e", f"{origin.commit}^{{commit}}")
        return
    try:
        git(home, "fetch", "--quiet", "--no-write-fetch-head", "origin", origin.commit)
    except UsageError as failure:
        where = f" ({origin.remote})" if origin.remote else ""
        what = (
            f"commit {origin.commit[:12]}, which run {run} was of, is not in this repository nor in its remote{where}"
        )
        raise UsageError(
            what, where=str(home), cure="fetch it from where it was pushed, then do this again"
        ) from failure
