"""The environments whose torch these tests run on, each made once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.race.environments import Environment, environment_of

ENVIRONMENTS = ["train-cu130", "local", "serve-sglang"]


@pytest.fixture(scope="session", params=ENVIRONMENTS)
def environment(request: pytest.FixtureRequest) -> Iterator[Environment]:
    with environment_of(request.param) as made:
        yield made
