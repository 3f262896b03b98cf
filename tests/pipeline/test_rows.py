"""Logs that are gone through side by side."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from dflash.errors import DataError
from dflash.pipeline.rows import Course, Log, together


def rows(*steps: int | None) -> list[dict[str, Any]]:
    return [{"at": at} if step is None else {"step": step, "at": at} for at, step in enumerate(steps)]


def met(*logs: list[dict[str, Any]]) -> list[tuple[int | None, ...]]:
    """By place, where in each log the row is that was found there."""
    return [tuple(row and row["at"] for row in here) for here in together([Course(log) for log in logs])]


def test_rows_of_one_step_meet_and_others_stand_alone():
    assert met(rows(1, 2, 4), rows(2, 3, 4)) == [(0, None), (1, 0), (None, 1), (2, 2)]
    assert met(rows(1, 2), rows(1), rows(2)) == [(0, 0, None), (1, None, 0)]
    assert met(rows(), rows(7)) == [(None, 0)]


def test_a_row_without_a_step_is_passed_over():
    assert met(rows(None, 1, None, 2), rows(1, None, 2)) == [(1, 0), (3, 2)]


def test_a_log_that_counts_anew_meets_another_phase_by_phase():
    assert met(rows(1, 2, 1, 2), rows(1, 2, 1, 2)) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert met(rows(1, 2, 1, 2), rows(1, 2, 1)) == [(0, 0), (1, 1), (2, 2), (3, None)]


def test_of_a_step_that_was_done_again_the_last_row_meets_that_of_another_log():
    assert met(rows(1, 2, 1), rows(1, 2, 3)) == [(2, 0), (1, 1), (None, 2)]
    assert met(rows(5, 5), rows(5)) == [(1, 0)]
    assert met(rows(1, 3, None, 2, 4), rows(1, 2, 3, 4)) == [(0, 0), (3, 1), (1, 2), (4, 3)]
    assert met(rows(1, 2, 3, 4, 3, 2, 3, 5), rows(1, 2, 3, 4, 5)) == [(0, 0), (5, 1), (6, 2), (3, 3), (7, 4)]
    assert met(rows(3, 2, 1), rows()) == [(2, None), (1, None), (0, None)]


@pytest.mark.parametrize("seed", range(20))
def test_a_log_in_any_order_is_gone_through_as_its_last_row_of_each_step(seed: int):
    drawn = random.Random(seed)
    log = rows(*(drawn.randrange(12) for _ in range(30)))
    last = {row["step"]: row["at"] for row in log}
    assert met(log, []) == [(last[step], None) for step in sorted(last)]


def test_a_log_is_read_anew_each_time_and_no_further_than_asked(tmp_path: Path):
    log = Log(tmp_path / "metrics.jsonl")
    log.path.write_text("".join(json.dumps(row) + "\n" for row in rows(1, 2, 3)) + '{"step": 4')
    assert [row["step"] for row in log] == [row["step"] for row in log] == [1, 2, 3]
    log.path.write_text('{"step": 1}\n{"step": 2}\n{"ste\n')
    assert [row["step"] for row in Log(log.path, until=1)] == [1]
    with pytest.raises(DataError, match=r"metrics\.jsonl:3"):
        list(log)
