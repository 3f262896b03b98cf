"""How a change of a step's key reads."""

from __future__ import annotations

from typing import Any

import pytest

from dflash.pipeline.changes import changes

LONG = "import sys; print('a long program that is given as one word', sys.argv)"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (5, 7, "config.x: 5 -> 7"),
        ("a" * 64, "b" * 64, "config.x: aaaaaaaaaaaa -> bbbbbbbbbbbb"),
        ("", "c" * 64, "config.x: none -> cccccccccccc"),
        ("5", 5, 'config.x: "5" -> 5'),
        ("a" * 64, "a" * 63 + "b", f'config.x: …{"a" * 20}a" -> …{"a" * 20}b"'),
        (
            ["python3", "-c", LONG, "--seed", "1"],
            ["python3", "-c", LONG, "--seed", "2"],
            'config.x: …ys.argv)","--seed","1"] -> …ys.argv)","--seed","2"]',
        ),
        ("x" * 100, "y" + "x" * 100, f"config.x: {'x' * 60}… -> y{'x' * 59}…"),
    ],
)
def test_both_sides_show_where_they_differ(old: Any, new: Any, says: str):
    assert [str(each) for each in changes({"config": {"x": old}}, {"config": {"x": new}})] == [says]


def test_a_side_that_is_cut_says_so():
    assert str(changes({}, {"x": [LONG]})[0]) == f'x: added, ["{LONG[:58]}…'
    assert str(changes({"x": [LONG]}, {})[0]) == f'x: removed, was ["{LONG[:58]}…'
