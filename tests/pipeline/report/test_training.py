"""What a training's log says, on the page."""

from __future__ import annotations

import re
from dataclasses import replace

from dflash.pipeline.report.training import curves
from tests.pipeline.report.sample import RECORD, contents


def test_each_role_has_its_share_of_tokens_of_the_time_and_its_memory():
    (training,) = contents().trainings
    assert by_role(curves(training, RECORD)) == [
        ["workers", "2 targets", "1 drafter"],
        ["tokens/s each", "510", "1,020"],
        ["busy, %", "58 to 66", "98"],
        ["GPU memory, GB", "60.5 to 61.0", "40.2"],
        ["warm-up, s", "4.4", "1.3"],
    ]


def test_a_target_that_is_spread_over_gpus_is_one():
    (training,) = contents().trainings
    html = curves(replace(training, target_gpus=2), RECORD)
    assert by_role(html)[:2] == [["workers", "1 target over 2 GPUs", "1 drafter"], ["tokens/s each", "1,020", "1,020"]]
    assert '<p class="lead">Targets waited 38% of the time.</p>' in html


def test_drafters_that_run_the_target_themselves_are_workers():
    (training,) = contents().trainings
    for count, said in ((20, "20 workers"), (1, "1 worker")):
        roles = {"target and drafter": range(count)}
        assert by_role(curves(replace(training, roles=roles, workers=[]), RECORD))[0] == ["workers", said]


def test_workers_that_are_no_more_are_told_but_no_advice_follows_from_them():
    """The training began with two targets, and went on with one."""
    (training,) = contents().trainings
    first, gone, drafter = training.workers
    roles = {"target": range(1), "drafter": range(1, 2)}
    now = replace(training, roles=roles, workers=[first, replace(drafter, rank=1)])
    assert "waited 42% of the time" in curves(now, RECORD)
    html = curves(replace(now, workers=[*now.workers, replace(gone, rank=2)]), RECORD)
    assert "waited 42% of the time: there is work in them for more drafters" in html
    assert by_role(html)[2] == ["busy, %", "58", "98"]
    assert "<td>2</td><td>target</td>" in html


def by_role(html: str) -> list[list[str]]:
    """The cells of the table by role, a list a row."""
    (card,) = re.findall("<h3>By role</h3>(.*?)</table>", html)
    rows = re.findall("<tr>(.*?)</tr>", card.replace("\u00a0", " "))
    return [re.findall("<t[hd].*?>(.*?)</t[hd]>", row) for row in rows]
