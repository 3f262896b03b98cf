"""Folders that pipelines run in: an ordinary one, one with a finished run, one that is full soon, one that can not be
written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounts import small_file_system, unwritable
from tests.pipeline.lab import SAMPLE, WORK, Lab, none_left


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    made.file.write_text(SAMPLE)
    yield made
    assert none_left(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the sample has run, to be copied."""
    made = Lab(tmp_path_factory.mktemp("finished"))
    made.file.write_text(SAMPLE)
    assert made.run().exit_code == 0
    return made.root


@pytest.fixture
def ran(lab: Lab, finished: Path) -> Lab:
    """A lab in which the sample has run."""
    shutil.copytree(finished, lab.root, symlinks=True, dirs_exist_ok=True)
    return lab


@pytest.fixture
def work(lab: Lab) -> Lab:
    """Two steps in a row, another that is independent of them, and a last one."""
    lab.file.write_text(WORK)
    return lab


@pytest.fixture(autouse=True)
def _marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mark every process of a test by its environment, so that a detached one is recognised too."""
    monkeypatch.setenv("DFLASH_TEST_ROOT", str(tmp_path))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    with small_file_system(tmp_path / "small", "8m") as folder:
        yield folder


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[Path]:
    """A folder that can not be written to."""
    folder = tmp_path / "sealed"
    folder.mkdir()
    (folder / "pipeline.yaml").write_text(SAMPLE)
    with unwritable(folder):
        yield folder
