"""This project's source as it is sent: what of a checkout goes along, and what is said about where it comes from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dflash.errors import UsageError
from dflash.hosts import unpacking
from dflash.pipeline.source import snapshot


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    home = tmp_path / "project"
    (home / "dflash").mkdir(parents=True)
    (home / "dflash" / "one.py").write_text("one = 1\n")
    (home / "run").write_text("#!/bin/sh\n")
    (home / "run").chmod(0o755)
    (home / ".gitignore").write_text("work/\n")
    (home / "work").mkdir()
    (home / "work" / "large").write_text("left")
    git(home, "init", "-q")
    git(home, "add", ".")
    git(home, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", "first")
    return home


def git(home: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(home), *words], check=True, capture_output=True, text=True).stdout


def test_the_source_is_the_commit_with_what_was_changed_and_nothing_that_git_ignores(checkout: Path, tmp_path: Path):
    clean, origin = snapshot(checkout)
    assert (origin.commit, origin.dirty) == (git(checkout, "rev-parse", "HEAD").strip(), False)
    (checkout / "dflash" / "one.py").unlink()
    (checkout / "dflash" / "two.py").write_text("two = 2\n")
    content, origin = snapshot(checkout)
    place = Path(unpacking.take(str(tmp_path / "root"), unpacking.digest(content), content))
    assert sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()) == [
        ".gitignore",
        "dflash/two.py",
        "run",
    ]
    assert os.access(place / "run", os.X_OK)
    assert unpacking.take(str(tmp_path / "root"), unpacking.digest(clean), b"") == ""
    assert git(checkout, "status", "--porcelain").split() == ["D", "dflash/one.py", "??", "dflash/two.py"]
    git(checkout, "stash", "-q", "--include-untracked")
    subprocess.run(["git", "-C", str(checkout), "apply"], input=origin.patch, check=True)
    assert snapshot(checkout)[0] == content


def test_a_file_too_large_to_be_source_is_named(checkout: Path):
    with (checkout / "rows.jsonl").open("wb") as file:
        file.truncate(65_000_000)
    with pytest.raises(UsageError, match=r"65 MB, 65 of them in rows.jsonl; move what is no source elsewhere"):
        snapshot(checkout)


def test_source_outside_of_git_is_what_a_run_needs(checkout: Path):
    (checkout / ".git").rename(checkout / "was-git")
    for name in ("envs", "pipelines"):
        (checkout / name).mkdir()
    content, origin = snapshot(checkout)
    assert (origin.commit, origin.dirty) == (None, None)
    assert b"one = 1" in content
    assert b"bin/sh" not in content


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("color.ui", "always"),
        ("diff.noprefix", "true"),
        ("diff.external", "true"),
        ("status.showUntrackedFiles", "no"),
        ("core.autocrlf", "true"),
    ],
)
def test_a_persons_settings_of_git_change_nothing(name: str, value: str, checkout: Path, tmp_path: Path):
    git(checkout, "config", name, value)
    git(checkout, "config", "core.safecrlf", "true")
    assert snapshot(checkout)[1].dirty is False
    (checkout / "dflash" / "new.py").write_text("new = 1\n")
    (checkout / "run").write_text("#!/bin/sh\nexit 1\n")
    origin = snapshot(checkout)[1]
    assert origin.dirty
    git(tmp_path, "clone", "-q", str(checkout), "clone")
    subprocess.run(["git", "-C", str(tmp_path / "clone"), "apply"], input=origin.patch, check=True)
    assert (tmp_path / "clone" / "dflash" / "new.py").read_text() == "new = 1\n"
    assert (tmp_path / "clone" / "run").read_text() == "#!/bin/sh\nexit 1\n"


def test_a_repository_within_goes_not_along_and_is_no_change(checkout: Path):
    git(checkout, "init", "-q", "nested")
    (checkout / "nested" / "file").touch()
    content, origin = snapshot(checkout)
    assert (origin.dirty, b"nested" in content) == (False, False)


def test_a_git_that_fails_is_an_error_and_not_a_clean_source(checkout: Path):
    (commit,) = (checkout / ".git" / "objects").glob(git(checkout, "rev-parse", "HEAD:dflash")[:2])
    commit.rename(checkout / "work" / "lost")
    with pytest.raises(UsageError, match=r"this source is can not be told: git read-tree: .*; make git work there"):
        snapshot(checkout)
    (checkout / ".git" / "HEAD").write_text("ref: refs/heads/none\n")
    with pytest.raises(UsageError, match=r"can not be told: git rev-parse: fatal: ambiguous argument 'HEAD'"):
        snapshot(checkout)


def test_files_that_go_along_as_data_are_no_source_unless_they_are_committed(checkout: Path, monkeypatch):
    monkeypatch.chdir(checkout / "dflash")
    (checkout / "rows.jsonl").write_text("a row")
    content, origin = snapshot(checkout, [Path("../rows.jsonl"), Path("one.py")])
    assert (origin.dirty, b"a row" in content, b"one = 1" in content) == (False, False, True)
    assert snapshot(checkout)[1].dirty


def test_a_link_goes_along_as_a_link_and_one_that_leads_out_is_refused(checkout: Path, tmp_path: Path):
    (checkout / "docs").mkdir()
    (checkout / "docs" / "latest").symlink_to("../dflash")
    (checkout / "alias.py").symlink_to("dflash/one.py")
    content, origin = snapshot(checkout)
    place = Path(unpacking.take(str(tmp_path / "root"), unpacking.digest(content), content))
    assert [os.readlink(place / name) for name in ("docs/latest", "alias.py")] == ["../dflash", "dflash/one.py"]
    assert unpacking.take(str(tmp_path / "root"), unpacking.digest(content), b"") == str(place)
    (place / "alias.py").unlink()
    (place / "alias.py").symlink_to("/etc/hostname")
    assert unpacking.take(str(tmp_path / "root"), unpacking.digest(content), content) == str(place)
    assert os.readlink(place / "alias.py") == "dflash/one.py"
    git(tmp_path, "clone", "-q", str(checkout), "clone")
    subprocess.run(["git", "-C", str(tmp_path / "clone"), "apply"], input=origin.patch, check=True)
    assert snapshot(tmp_path / "clone")[0] == content
    for target in ("../outside", "/etc/hostname"):
        (checkout / "docs" / "latest").unlink()
        (checkout / "docs" / "latest").symlink_to(target if target[0] == "/" else f"../{target}")
        with pytest.raises(UsageError, match=r"docs/latest is a link that leads out of the source; put there what"):
            snapshot(checkout)


def test_a_folder_that_became_a_link_is_that_link(checkout: Path):
    (checkout / "dflash").rename(checkout / "other")
    (checkout / "dflash").symlink_to("other")
    content, origin = snapshot(checkout)
    assert content.count(b"one = 1") == 1
    assert b"deleted file mode 100644" in origin.patch or b"rename from dflash/one.py" in origin.patch
    assert b"new file mode 120000" in origin.patch
