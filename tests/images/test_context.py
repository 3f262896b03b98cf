"""What a build may see is made from git alone, and is the same wherever and whenever it is made."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash.errors import StorageError, UsageError
from dflash.images.context import make_context, read_revision
from tests.images.lab import git
from tests.mounts import small_file_system


def listing(folder: Path) -> list[tuple[str, int, float, str]]:
    """(path, mode, time, content) of everything in a folder."""
    found = []
    for path in sorted([folder, *folder.rglob("*")]):
        about = path.lstat()
        content = os.readlink(path) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found.append((str(path.relative_to(folder)), about.st_mode, about.st_mtime, content))
    return found


def test_two_clones_under_two_umasks_give_the_same_context(project: Path, tmp_path: Path):
    epoch = read_revision(project).epoch
    one = make_context(project, "small", epoch, tmp_path / "one")
    before = os.umask(0o077)
    try:
        subprocess.run(["git", "clone", "--quiet", str(project), str(tmp_path / "clone")], check=True)
        two = make_context(tmp_path / "clone", "small", epoch, tmp_path / "two")
    finally:
        os.umask(before)
    assert listing(one) == listing(two)
    modes = {path: oct(mode & 0o777) for path, mode, _, _ in listing(one)}
    assert modes["project/inv"] == "0o755"
    assert modes["project/dflash/__init__.py"] == "0o644"
    assert modes["tools/uv"] == "0o755"
    assert {time for _, _, time, _ in listing(one)} == {1772366400}


def test_what_git_does_not_track_is_not_there(project: Path, tmp_path: Path):
    (project / "secret.key").write_text("nobody's business")
    (project / "dflash" / "new.py").write_text("x = 1\n")
    git(project, "add", "dflash/new.py")
    context = make_context(project, "small", 0, tmp_path / "context")
    assert not (context / "project" / "secret.key").exists()
    assert (context / "project" / "dflash" / "new.py").read_text() == "x = 1\n"
    assert os.readlink(context / "project" / "link") == "inv"
    assert not (context / "project" / ".git").exists()


def test_uv_is_the_one_of_this_environment(project: Path, tmp_path: Path):
    context = make_context(project, "small", 0, tmp_path / "context")
    mine = (Path(sys.prefix) / "bin" / "uv").read_bytes()
    assert (context / "tools" / "uv").read_bytes() == mine


def test_a_changed_tree_says_what_changed(project: Path):
    assert read_revision(project).changed == ()
    (project / "inv").write_text("#!/bin/sh\nexit 1\n")
    (project / "new.py").write_text("")
    assert sorted(read_revision(project).changed) == ["inv", "new.py"]


def test_a_lock_that_git_does_not_track_is_named(project: Path, tmp_path: Path):
    git(project, "rm", "--quiet", "--cached", "envs/small/requirements.lock")
    with pytest.raises(UsageError) as raised:
        make_context(project, "small", 0, tmp_path / "context")
    lock = "envs/small/requirements.lock"
    assert str(raised.value) == f"{lock}: git does not track it, so no image can have it; git add {lock}"


def test_a_folder_that_is_no_working_tree_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match="not a git repository"):
        read_revision(tmp_path)


def test_a_working_tree_without_a_commit_is_named(tmp_path: Path):
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    with pytest.raises(UsageError, match="does not have any commits yet; build from a working tree of git with at"):
        read_revision(tmp_path)


def test_a_full_disk_is_named(project: Path, tmp_path: Path):
    with small_file_system(tmp_path / "small", "1m") as small, pytest.raises(StorageError, match="No space left"):
        make_context(project, "small", 0, small / "context")
