"""Which workers are on which host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash.errors import UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.pipeline.launchers.sharing import are_together, room_of, shares
from dflash.training.config import Topology, TrainConfig


@pytest.mark.parametrize(
    ("topology", "room", "expected"),
    [
        (Topology(5, 3), [8], [8]),
        (Topology(10, 6), [8, 8], [8, 8]),
        (Topology(7, 5), [8, 8], [7, 5]),  # not 8 and 4: the drafters stay together
        (Topology(8, 8), [8, 8], [8, 8]),
        (Topology(5, 3), [8, 8], [8, 0]),
        (Topology(0, 8), [8, 8], [8, 0]),
        (Topology(0, 12), [8, 8], [8, 4]),
        (Topology(1, 3), [2, 2], [2, 2]),
        (Topology(6, 4, target_gpus=2), [7, 8, 8], [6, 6, 4]),  # a target's workers stay together, too
        (Topology(2, 4), [4, 1, 4], [2, 0, 4]),
    ],
)
def test_targets_come_first_and_drafters_are_on_one_host_where_it_has_room(
    topology: Topology, room: list[int], expected: list[int]
):
    counts = shares(topology, room)
    assert counts == expected
    assert are_together(topology, counts) == (topology not in (Topology(0, 12), Topology(1, 3)))


@pytest.mark.parametrize(
    ("topology", "room", "said"),
    [
        (Topology(10, 7), [8, 8], r"17 workers need as many GPUs, and the hosts have 8 \+ 8; name more hosts"),
        (Topology(1, 1, target_gpus=8), [4, 4, 4], "9 workers need as many GPUs, 8 for each target on one host"),
    ],
)
def test_what_does_not_fit_is_said(topology: Topology, room: list[int], said: str):
    with pytest.raises(UsageError, match=said):
        shares(topology, room)


def test_a_host_has_room_for_a_worker_a_gpu_or_a_share_of_those_on_cpus():
    one, other = (Host(name, parse_chain("local"), gpus=gpus) for name, gpus in (("one", 8), ("other", 0)))
    config = TrainConfig(topology=Topology(5, 4))
    assert room_of([one, other], config) == [5, 5]
    assert room_of([one], replace(config, device="cuda")) == [8]
    with pytest.raises(UsageError, match=r"how many GPUs other has is not known; give its gpus in hosts\.yaml"):
        room_of([one, other], replace(config, device="cuda"))
