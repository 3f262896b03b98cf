"""A drafter, and its folder as this project writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dflash.model.draft import DFlashDraftModel


@pytest.fixture(scope="session")
def draft() -> DFlashDraftModel:
    from tests.tiny import new_draft

    return new_draft(layers=2).float()


@pytest.fixture
def folder(tmp_path: Path, draft: DFlashDraftModel) -> Path:
    from tests.model.drafters import written

    return written(tmp_path / "draft", draft)


@pytest.fixture
def sliding_folder(tmp_path: Path) -> Path:
    """Of a drafter whose first layer slides."""
    from tests.model.drafters import sliding_draft, written

    return written(tmp_path / "sliding", sliding_draft())
