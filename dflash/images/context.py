"""What a build may see: the files that git tracks, the environment's declaration and its tools, with fixed times.

    project/      every file that git tracks, as it is now in the working tree
    environment/  env.yaml and requirements.lock of the environment
    tools/        uv, and the scripts that a Dockerfile runs

A COPY takes modes and times along into the layer, so they are the same on every machine: 0644 or 0755, and the time of
the commit. What git does not track is not there: no data, no keys, nothing of an editor.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dflash.errors import UsageError, storage_error

SCRIPTS = ("packages.sh", "environment.sh")


@dataclass(frozen=True)
class Revision:
    """What git says of a working tree: the commit, its time (seconds since 1970), and paths changed since."""

    commit: str
    epoch: int
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Tracked:
    """A file that git tracks: its path below the project, and whether it can be run or is a symbolic link."""

    path: str
    executable: bool
    link: bool


def read_revision(project: Path) -> Revision:
    """The commit of the working tree at `project`. Raises UsageError when it is none, or has no commit."""
    commit, epoch = _git(project, "log", "-1", "--format=%H %ct").split()
    changed = [line[3:] for line in _git(project, "status", "--porcelain", "-z").split("\0") if line]
    return Revision(commit, int(epoch), tuple(changed))


def tracked(project: Path) -> list[Tracked]:
    """The files of the index that are there, sorted by path. A file of another repository within is left out."""
    found = []
    for entry in _git(project, "ls-files", "--stage", "-z").split("\0"):
        about, _, path = entry.partition("\t")
        mode = about.partition(" ")[0]
        if mode.startswith(("100", "120")) and os.path.lexists(project / path):
            found.append(Tracked(path, mode == "100755", mode == "120000"))
    return sorted(found, key=lambda each: each.path)


def make_context(project: Path, environment: str, epoch: int, folder: Path) -> Path:
    """Make the context in the new folder `folder`, which it gives back.

    Raises:
        UsageError: git does not track a file that the image can not do without.
        StorageError: a file can not be read, or the disk is full.
    """
    files = tracked(project)
    declared = [f"envs/{environment}/{name}" for name in ("env.yaml", "requirements.lock")]
    for path in (*declared, *(f"docker/{name}" for name in SCRIPTS)):
        if path not in {each.path for each in files}:
            raise UsageError("git does not track it, so no image can have it", where=path, cure=f"git add {path}")
    try:
        for each in files:
            target = folder / "project" / each.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if each.link:
                target.symlink_to(os.readlink(project / each.path))
            else:
                shutil.copyfile(project / each.path, target)
                target.chmod(0o755 if each.executable else 0o644)
        _copies(project, declared, folder / "environment")
        _copies(project, [f"docker/{name}" for name in SCRIPTS], folder / "tools")
        shutil.copyfile(Path(sys.prefix) / "bin" / "uv", folder / "tools" / "uv")
        (folder / "tools" / "uv").chmod(0o755)
        _settle(folder, epoch)
    except OSError as failure:
        raise storage_error(failure) from failure
    return folder


def _copies(project: Path, paths: list[str], folder: Path) -> None:
    folder.mkdir(parents=True)
    for path in paths:
        shutil.copyfile(project / path, folder / Path(path).name)
        (folder / Path(path).name).chmod(0o644)


def _settle(folder: Path, epoch: int) -> None:
    """Give everything its time, and folders their mode; deepest first, as a change within changes a folder's time."""
    for path in sorted([folder, *folder.rglob("*")], key=lambda each: len(each.parts), reverse=True):
        if stat.S_ISDIR(path.lstat().st_mode):
            path.chmod(0o755)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def _git(project: Path, *words: str) -> str:
    cure = "build from a working tree of git with at least one commit"
    try:
        done = subprocess.run(["git", *words], cwd=project, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError("there is no program git here", cure="install git") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["git failed"]
        raise UsageError(said[0].removeprefix("fatal: "), where=str(project), cure=cure)
    return done.stdout
