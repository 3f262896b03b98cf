"""Folders that pipelines run in: an ordinary one, one that is full soon, one that can not be written."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.lab import SAMPLE, Lab, none_left


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    made.file.write_text(SAMPLE)
    yield made
    assert none_left(tmp_path)


@pytest.fixture(autouse=True)
def _marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mark every process of a test by its environment, so that a detached one is recognised too."""
    monkeypatch.setenv("DFLASH_TEST_ROOT", str(tmp_path))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    yield from _tmpfs(tmp_path / "small", "size=8m")


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[Path]:
    """A folder that can not be written to: a read-only mount for root, a mode for others."""
    folder = tmp_path / "sealed"
    folder.mkdir()
    (folder / "pipeline.yaml").write_text(SAMPLE)
    if os.geteuid() != 0:
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)
        return
    _mount("--bind", str(folder), str(folder))
    try:
        _mount("-o", "remount,ro,bind", str(folder))
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _tmpfs(folder: Path, options: str) -> Iterator[Path]:
    if os.geteuid() != 0 and os.environ.get("CI") != "true":
        pytest.skip("only root can mount a file system")
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _mount(*words: str) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True)
    if done.returncode and os.environ.get("CI") != "true":
        pytest.skip(f"mount is not permitted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
