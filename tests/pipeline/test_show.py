"""What a terminal is shown of a run."""

from __future__ import annotations

import io
from typing import Any

import pytest

from dflash.pipeline.show import show_record
from tests.pipeline.report.sample import OLD, RECORD, TRAINED, matrix_record


def shown(record: dict[str, Any]) -> list[str]:
    show_record(record, "runs/it", stream := io.StringIO())
    return stream.getvalue().splitlines()


def test_how_busy_each_role_was_is_a_line():
    assert "busy: targets 62%, drafters 98%" in shown(RECORD)


def test_of_several_trainings_each_that_has_ended_has_its_line():
    assert [line for line in shown(matrix_record()) if "busy" in line] == [
        "train@seed=2: busy: targets 62%, drafters 98%"
    ]


@pytest.mark.parametrize("result", [None, {}, {name: value for name, value in TRAINED.items() if name != "busy"}])
def test_a_training_that_noted_nothing_has_none(result: dict[str, Any] | None):
    steps = [{**each, "result": result} if each["kind"] == "train" else each for each in OLD["steps"]]
    assert not any("busy" in line for line in shown({**OLD, "steps": steps}))
