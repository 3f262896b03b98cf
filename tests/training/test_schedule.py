"""The schedule: sends and receives pair up, work is even, and a resumed training goes on in it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.training.config import Topology
from dflash.training.schedule import Assignment, assignments, work_of


def pairs_of(rank: int, topology: Topology, steps: range, accumulate: int = 1) -> list[tuple[int, Assignment]]:
    return [(step, each) for step in steps for each in work_of(rank, step, topology, accumulate)]


topologies = st.builds(Topology, targets=st.integers(1, 6), drafters=st.integers(1, 6))
EIGHT = Topology(5, 3)


def test_the_first_steps_of_five_targets_and_three_drafters():
    assert [assignments(step, EIGHT) for step in range(2)] == [
        [Assignment(0, 0, 5), Assignment(1, 1, 6), Assignment(2, 2, 7)],
        [Assignment(3, 3, 5), Assignment(4, 4, 6), Assignment(5, 0, 7)],
    ]


@given(topologies, st.integers(0, 1000))
def test_every_drafter_trains_on_one_micro_batch_a_step_made_by_a_target(topology: Topology, step: int):
    made = assignments(step, topology)
    assert [each.drafter for each in made] == list(topology.drafter_ranks)
    assert all(each.target in range(topology.targets) for each in made)


@given(topologies, st.integers(1, 60), st.integers(1, 4))
def test_all_micro_batches_come_once_and_in_order(topology: Topology, steps: int, accumulate: int):
    made = [each.index for step in range(steps) for each in assignments(step, topology, accumulate)]
    assert made == list(range(steps * topology.drafters * accumulate))


def test_accumulated_micro_batches_go_round_the_drafters():
    made = assignments(0, Topology(2, 2), accumulate=2)
    assert [(each.index, each.target, each.drafter) for each in made] == [(0, 0, 2), (1, 1, 3), (2, 0, 2), (3, 1, 3)]


@given(topologies, st.integers(1, 60))
def test_targets_have_the_same_work_within_one_micro_batch(topology: Topology, steps: int):
    work = Counter(each.target for step in range(steps) for each in assignments(step, topology))
    counts = [work[rank] for rank in range(topology.targets)]
    assert max(counts) - min(counts) <= 1


@given(topologies, st.integers(0, 20), st.integers(1, 20), st.integers(1, 3))
def test_what_one_rank_sends_to_another_is_received_there_in_the_same_order(
    topology: Topology, first: int, more: int, accumulate: int
):
    steps = range(first, first + more)
    for target in range(topology.targets):
        for drafter in topology.drafter_ranks:
            sent = [pair for pair in pairs_of(target, topology, steps, accumulate) if pair[1].drafter == drafter]
            received = [pair for pair in pairs_of(drafter, topology, steps, accumulate) if pair[1].target == target]
            assert sent == received


@given(topologies, st.integers(0, 20), st.integers(1, 20))
def test_a_resumed_training_does_the_rest_of_an_uninterrupted_one(topology: Topology, first: int, more: int):
    for rank in range(topology.size):
        whole = list(pairs_of(rank, topology, range(first + more)))
        rest = list(pairs_of(rank, topology, range(first, first + more)))
        assert rest == [pair for pair in whole if pair[0] >= first]
        assert all(rank in (each.target, each.drafter) for _, each in rest)


@given(topologies, st.integers(1, 4))
def test_ranks_that_wait_for_each_other_in_turn_come_to_the_end(topology: Topology, prefetch: int):
    """Each rank does its work in order; a send waits while `prefetch` are not received, and a step ends when all
    drafters have received: no rank waits for ever."""
    steps = 2 * topology.targets + 1
    todo = {rank: list(pairs_of(rank, topology, range(steps))) for rank in range(topology.size)}
    in_flight: Counter[tuple[int, int]] = Counter()
    moved = True
    while moved:
        moved = False
        for rank in range(topology.targets):
            while todo[rank] and in_flight[rank, todo[rank][0][1].drafter] < prefetch:
                in_flight[rank, todo[rank].pop(0)[1].drafter] += 1
                moved = True
        fronts = [todo[rank][0][1] for rank in topology.drafter_ranks if todo[rank]]
        if fronts and all(in_flight[each.target, each.drafter] for each in fronts):
            for each in fronts:
                in_flight[each.target, each.drafter] -= 1
                todo[each.drafter].pop(0)
            moved = True
    assert not any(todo.values())


@given(st.integers(1, 6), st.integers(0, 1000), st.integers(1, 3))
def test_colocated_workers_train_on_the_micro_batches_of_a_splits_drafters_and_run_the_target_themselves(
    drafters: int, step: int, accumulate: int
):
    colocated, split = (assignments(step, Topology(targets, drafters), accumulate) for targets in (0, 2))
    assert [(each.index, each.drafter) for each in colocated] == [(each.index, each.drafter - 2) for each in split]
    assert all(each.target == each.drafter for each in colocated)


@pytest.mark.parametrize(("targets", "drafters"), [(1, 0), (0, 0), (-1, 1)])
def test_a_topology_without_drafters_is_refused(targets: int, drafters: int):
    with pytest.raises(ValueError, match=r"(drafters must be at least 1, not 0|targets must be at least 1, or 0: )"):
        Topology(targets, drafters)


def test_all_workers_of_a_spread_target_run_it_and_the_first_hands_on():
    topology = Topology(2, 1, target_gpus=2)
    assert (topology.size, topology.drafter_ranks) == (5, (4,))
    assert assignments(0, topology) + assignments(1, topology) == [Assignment(0, 0, 4), Assignment(1, 2, 4)]
    for rank in range(4):
        ((_, each),) = pairs_of(rank, topology, range(2))
        assert each.target == rank - rank % 2


def test_only_whole_targets_can_be_the_drafters_own():
    with pytest.raises(ValueError, match="target_gpus must be at least 1, and 1 where drafters run the target"):
        Topology(0, 2, target_gpus=2)
