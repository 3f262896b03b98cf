"""How busy each worker was, on the page."""

from __future__ import annotations

import re

import pytest

from dflash.pipeline.report.busy import advice, by_worker, charts, over_steps
from dflash.pipeline.report.page import page
from dflash.training.usage import Worker, share_of
from tests.pipeline.report.sample import contents, noted, samples, workers


def crew(targets: list[float], drafters: list[float], gpu_gb: float | None = 50.0) -> list[Worker]:
    """Workers that are busy for so much of the time."""
    made = [noted(busy, gpu_gb) for busy in targets] + [noted(busy, gpu_gb, "drafter") for busy in drafters]
    return [Worker(rank, found[0]["role"], samples(found)) for rank, found in enumerate(made)]


def test_each_worker_is_told_with_its_role_its_share_of_the_time_and_its_memory():
    html = page(contents())
    assert [re.findall("<td.*?>(.*?)</td>", row) for row in re.findall("<tr>(<td>[0-2]</td>.*?)</tr>", html)] == [
        ["0", "target", "58%", "60.5 GB"],
        ["1", "target", "66%", "61.0 GB"],
        ["2", "drafter", "98%", "40.2 GB"],
    ]
    assert "Targets waited 38% of the time: there is work in them for more drafters; ./inv split measures it." in html


def test_a_chart_has_a_line_for_each_role_in_the_band_of_its_workers():
    busy, memory = charts(workers())
    assert re.findall("</i>(.*?) <b>(.*?)</b>", busy) == [("target", "mean 62"), ("drafter", "mean 98")]
    assert "target from 62 at step 1 to 62 at step 120, between 58 and 66, mean 62; drafter from 98" in busy
    assert busy.count('class="band"') == 1
    assert ">0</span>" in busy
    assert ">100</span>" in busy
    assert "target from 60.8 at step 1 to 60.8 at step 120, between 60.5 and 61" in memory


def test_the_legend_tells_the_share_of_all_the_time_and_not_of_the_last_steps():
    """What a training ends with, such as its last measurement, says little of it."""
    rows = [*noted(0.904, None), {"step": 121, "role": "target", "busy_s": 0.0, "step_s": 0.25}]
    assert "</i>target <b>mean 90</b>" in charts([Worker(0, "target", samples(rows))])[0]


def test_sixty_four_workers_are_two_lines_and_a_table_that_is_opened_on_demand():
    many = crew([0.9] * 40, [0.8] * 24)
    assert charts(many)[0].count('class="line"') == 2
    assert "<details><summary>By worker <span>64 workers</span>" in by_worker(many)
    assert "<details open><summary>By worker <span>8 workers</span>" in by_worker(many[:8])


def test_a_role_s_line_is_the_mean_of_its_workers_over_the_same_steps_however_many_each_noted():
    """One that was killed noted less, in smaller buckets."""
    made = [noted(1.0, None, count=5000), noted(0.5, None, count=700)]
    lines = over_steps([Worker(rank, "target", samples(rows)) for rank, rows in enumerate(made)], share_of, 50)
    assert len(lines["target"]) == 50
    together, alone = lines["target"][:7], lines["target"][8:]
    assert [(each.mean, each.least, each.most) for each in together] == [(0.75, 0.5, 1.0)] * 7
    assert {(each.mean, each.least, each.most) for each in alone} == {(1.0, 1.0, 1.0)}
    assert lines["target"][-1].last == 5000


@pytest.mark.parametrize(
    ("targets", "drafters", "said"),
    [
        ([0.62] * 5, [1.0] * 3, "Targets waited 38% of the time: 4 of 5 would do; ./inv split measures it."),
        ([0.62], [1.0], "Targets waited 38% of the time: there is work in them for more drafters; ./inv split "),
        ([0.99], [0.5, 0.7], "Drafters waited 40% of the time: more targets would keep them busy, or fewer of them "),
        ([0.5], [0.25], "Both waited: targets 50% and drafters 75% of the time; ./inv split measures what each takes."),
        ([0.85] * 2, [0.95], ""),
    ],
)
def test_a_role_that_waits_much_is_worth_a_sentence(targets: list[float], drafters: list[float], said: str):
    found = advice(crew(targets, drafters))
    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("target", "drafter", "said"),
    [
        (0.5, 1.0, "Targets waited 50% of the time."),
        (1.0, 0.5, "Drafters waited 50% of the time."),
        (0.5, 0.25, "Both waited: targets 50% and drafters 75% of the time."),
    ],
)
def test_of_a_target_that_is_spread_over_gpus_only_its_share_is_told(target: float, drafter: float, said: str):
    """Fewer of its GPUs would not hold it, and ./inv split refuses to measure it."""
    assert advice(crew([target] * 4, [drafter] * 4), target_gpus=4) == said


def test_workers_that_do_both_wait_for_no_other_role():
    both = [Worker(0, "target and drafter", samples(noted(0.7, 9.5, "target and drafter")))]
    assert advice(both) == "Workers waited 30% of the time, for sums over drafters, data or a disk."


def test_of_a_cpu_it_is_said_what_busy_means_there():
    html = by_worker(crew([0.9], [0.9], None))
    assert "On a CPU workers share the processors" in html
    assert "GPU memory" not in html
    assert "On a CPU" not in by_worker(crew([0.9], [0.9]))
    assert charts(crew([0.9], [0.9], None))[1] == ""


def test_a_training_of_which_nobody_noted_anything_has_neither_chart_nor_table():
    assert charts([]) == ["", ""]
    assert by_worker([]) == ""
    assert advice([]) == ""
