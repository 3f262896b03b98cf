"""A server that speaks, for the tests of whatever asks one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.training.speaking import Speaking, speaking


@pytest.fixture
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash.training import serving

    monkeypatch.setattr(serving, "_FIRST_WAIT_S", 0.002)


@pytest.fixture
def there() -> Iterator[Speaking]:
    with speaking() as server:
        yield server
