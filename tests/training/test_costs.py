"""The cost model says what the schedule does, and finds the split that a person would have to try out."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.training.config import Topology
from dflash.training.costs import Figures, cost, costs, proposal
from dflash.training.schedule import assignments

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "costs-27b.json").read_text())
LARGE = Figures(**RECORDED["figures"])
FREE = Figures(target_s=1.0, draft_s=1.0, update_s=0.0, gradient_bytes=0, feature_bytes=0, link_bytes_per_s=1, tokens=1)


def played(figures: Figures, topology: Topology, steps: int) -> list[float]:
    """When each step ends, by the schedule itself: a target waits while `prefetch` of its micro-batches are not taken,
    drafters begin a step together."""
    free: dict[int, float] = defaultdict(float)
    taken: dict[tuple[int, int], list[float]] = defaultdict(list)
    ends = []
    for step in range(steps):
        for each in assignments(step, topology, figures.accumulate):
            made = free[each.target] + figures.target_s
            if each.target == each.drafter:
                free[each.drafter] = made + figures.draft_s
                continue
            channel = taken[each.target, each.drafter]
            room = channel[-figures.prefetch] if len(channel) >= figures.prefetch else 0.0
            free[each.target] = sent = max(made, room)
            channel.append(max(sent, free[each.drafter]))
            free[each.drafter] = channel[-1] + figures.draft_s
        last = max(free[rank] for rank in topology.drafter_ranks)
        ends.append(last + figures.update_s + figures.sum_s(topology.drafters))
        free.update(dict.fromkeys(topology.drafter_ranks, ends[-1]))
    return ends


def test_five_and_three_are_found_for_a_27b_target_on_eight_gpus():
    found = proposal(costs(LARGE, 8))
    assert found
    assert found.topology == Topology(5, 3)
    assert found.fits
    assert min(found.target_busy, found.drafter_busy) > 0.8


def test_a_drafter_as_wide_as_that_target_costs_so_much_more_that_it_wants_a_fourth_gpu():
    found = proposal(costs(Figures(**RECORDED["own"]), 8))
    assert found
    assert found.topology == Topology(4, 4)


@pytest.mark.parametrize("targets", range(8))
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_takes_as_long_as_the_schedule_played_through(targets: int, accumulate: int):
    figures, topology = replace(LARGE, accumulate=accumulate), Topology(targets, 8 - targets)
    ends = played(figures, topology, 1000)
    assert (ends[-1] - ends[199]) / 800 == pytest.approx(cost(figures, topology).step_s, rel=0.01)


def test_the_slower_role_of_a_split_is_always_busy_and_colocated_roles_share_the_step():
    for each in costs(LARGE, 8):
        busy = (each.target_busy, each.drafter_busy)
        assert (sum(busy) if each.topology.colocated else max(busy)) == pytest.approx(1.0)


def test_every_split_and_colocated_are_there_the_fastest_first():
    found = costs(LARGE, 8)
    assert sorted((each.topology.targets, each.topology.drafters) for each in found) == [(n, 8 - n) for n in range(8)]
    assert [each.tokens_per_s for each in found] == sorted((each.tokens_per_s for each in found), reverse=True)


@given(st.floats(0.01, 100), st.integers(2, 16))
def test_no_split_is_much_faster_than_the_one_proposed(target_s: float, workers: int):
    found = costs(replace(FREE, target_s=target_s), workers)
    chosen = proposal(found)
    assert chosen
    assert all(each.tokens_per_s <= 1.011 * chosen.tokens_per_s for each in found if not each.topology.colocated)


def test_of_splits_that_are_as_fast_the_one_with_fewer_drafters_is_proposed():
    """One drafter of three waits half the time: two do as much."""
    as_fast = replace(FREE, target_s=0.5)
    assert cost(as_fast, Topology(1, 2)).tokens_per_s == cost(as_fast, Topology(1, 3)).tokens_per_s
    found = [cost(as_fast, Topology(1, 3)), cost(as_fast, Topology(1, 2))]
    assert proposal(found) == found[1]


def test_the_gradients_sum_costs_more_with_every_drafter_and_never_twice_the_gradient():
    figures = replace(FREE, gradient_bytes=6, link_bytes_per_s=3)
    assert [figures.sum_s(drafters) for drafters in (1, 2, 3)] == [0.0, 2.0, pytest.approx(8 / 3)]
    assert figures.sum_s(10**6) < 4.0


def test_what_does_not_fit_is_not_proposed():
    """A target's features that wait for many drafters count, too."""
    tight = replace(FREE, target_s=0.2, target_bytes=80, drafter_bytes=90, feature_bytes=2, memory_bytes=100)
    found = costs(tight, 8)
    assert {each.topology.targets: each.fits for each in found} == {n: n >= 5 for n in range(8)}
    chosen = proposal(found)
    assert chosen
    assert chosen.topology == Topology(5, 3)


def test_nothing_is_proposed_where_a_role_does_not_fit_by_itself():
    assert proposal(costs(replace(FREE, target_bytes=99, drafter_bytes=1, memory_bytes=100), 8)) is None


def test_one_worker_does_both():
    chosen = proposal(costs(FREE, 1))
    assert chosen
    assert chosen.topology == Topology(0, 1)
    assert chosen.step_s == 2.0


def test_memory_that_is_not_known_is_not_judged():
    assert {(each.bytes, each.fits) for each in costs(FREE, 4)} == {(None, None)}
