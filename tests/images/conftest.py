"""The lab of the image tests: one engine, one registry, one set of wheels for all of them; a project for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images.lab import BASE, base_tar, make_project, make_wheels
from tests.lab.buildkit import Engine, buildkit
from tests.lab.registry import registry


@pytest.fixture(scope="session")
def lab_engine() -> Iterator[Engine]:
    with buildkit() as running:
        running.run("import", str(base_tar()), BASE)
        yield running


@pytest.fixture
def engine(lab_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine, which a plain `docker` and the SDK reach while the test runs."""
    for name, value in lab_engine.environment.items():
        monkeypatch.setenv(name, value)
    return lab_engine


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with registry() as running:
        yield running


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def project(tmp_path: Path, wheels: Path) -> Path:
    return make_project(tmp_path / "project", wheels)
