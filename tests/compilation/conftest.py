"""A compile cache, and a vault with a key of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.compilation.vault import Vault
from tests.compilation.caches import fill


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return fill(tmp_path / "live" / "cache")


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(tmp_path / "vault", tmp_path / "secret" / "key")
