"""The source of a run, made again from its commit and its patch."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from dflash.errors import DataError
from dflash.pipeline.restoring import restored
from dflash.pipeline.source import snapshot
from tests.pipeline.lab import Lab


def test_a_project_that_is_a_folder_of_a_larger_repository_is_restored_with_what_was_changed_in_it(tmp_path: Path):
    top, run = tmp_path / "top", tmp_path / "run"
    home = top / "a project"
    (home / "dflash").mkdir(parents=True)
    run.mkdir()
    (top / "beside.txt").write_text("not of it\n")
    (home / "dflash" / "one.py").write_text("one = 1\n")
    for words in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", "first"),
    ):
        subprocess.run(["git", "-C", str(top), *words], check=True)
    for content in ("one = 1\n", "one = 2\n"):
        (home / "dflash" / "one.py").write_text(content)
        snapshot(home)[1].keep(run)
        with restored(run, home) as source:
            assert (source.folder / "dflash" / "one.py").read_text() == content
            assert sorted(path.name for path in source.folder.iterdir()) == ["dflash"]


def test_a_source_whose_files_were_moved_and_removed_for_the_next_commit_is_restored_so(tmp_path: Path):
    home, run = tmp_path / "project", tmp_path / "run"
    (home / "dflash").mkdir(parents=True)
    run.mkdir()
    for name in ("one", "two", "three"):
        (home / "dflash" / f"{name}.py").write_text(f"{name} = 1\n")
    for words in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", "first"),
        ("rm", "-q", "dflash/two.py"),
        ("mv", "dflash/three.py", "dflash/four.py"),
    ):
        subprocess.run(["git", "-C", str(home), *words], check=True)
    snapshot(home)[1].keep(run)
    with restored(run, home) as source:
        assert sorted(path.name for path in (source.folder / "dflash").iterdir()) == ["four.py", "one.py"]


def test_a_patch_that_fits_no_commit_or_gives_another_source_is_never_run(ran: Lab):
    (run,) = ran.runs()
    told = json.loads((run / "source.json").read_text())
    patch = b"diff --git a/no b/no\n--- a/no\n+++ b/no\n@@ -1 +1 @@\n-a\n+b\n"
    (run / "source.patch").write_bytes(patch)
    changed = {**told, "dirty": True, "patch": hashlib.sha256(patch).hexdigest()}
    (run / "source.json").write_text(json.dumps(changed))
    with pytest.raises(DataError, match=r"its source\.patch does not fit its commit: .*git apply"), restored(run):
        pass
    (run / "source.patch").unlink()
    (run / "source.json").write_text(json.dumps({**told, "dirty": False, "patch": None, "digest": "0" * 16}))
    with pytest.raises(DataError, match=r"give the source [0-9a-f]{16}, not 0{16}, which ran"), restored(run):
        pass
