"""Workers reach each other through queues and sums whose results are the same bits every time."""

import threading
import time

import pytest
import torch

from dflash.errors import DFlashError
from dflash.training.communicator import Aborted, ThreadGroup


def run_ranks(group: ThreadGroup, body, ranks=None) -> dict[int, object]:
    """Run `body(communicator)` on each rank in a thread of its own; results, or what was raised, by rank."""
    results: dict[int, object] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = body(group.communicator(rank))
        except BaseException as failure:
            results[rank] = failure

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (ranks or range(group.size))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "a worker hangs"
    return results


def test_tensors_arrive_in_the_order_they_were_sent():
    group = ThreadGroup(2, prefetch=2)

    def body(comm):
        if comm.rank == 0:
            for number in range(20):
                comm.send(torch.tensor([number]), 1)
            return None
        return [int(comm.receive(0, (1,), torch.int64)) for _ in range(20)]

    assert run_ranks(group, body)[1] == list(range(20))


def test_a_sender_runs_ahead_by_the_prefetch_depth_and_no_further():
    group = ThreadGroup(2, prefetch=3)
    sent = []

    def send() -> None:
        comm = group.communicator(0)
        for number in range(10):
            comm.send(torch.tensor([number]), 1)
            sent.append(number)

    sender = threading.Thread(target=send)
    sender.start()
    time.sleep(0.2)
    assert sent == [0, 1, 2]
    receiver = group.communicator(1)
    for _ in range(10):
        receiver.receive(0, (1,), torch.int64)
    sender.join(10)
    assert sent == list(range(10))


def test_a_tensor_of_another_shape_than_the_schedule_says_is_an_error_that_names_both_workers():
    group = ThreadGroup(2, prefetch=1)
    group.communicator(0).send(torch.zeros(2, 3), 1)
    with pytest.raises(DFlashError, match=r"worker 0 sent \(2, 3\) torch.float32 to worker 1, which expects \(3, 2\)"):
        group.communicator(1).receive(0, (3, 2), torch.float32)


def test_a_sum_is_added_in_rank_order_whoever_comes_first():
    values = [torch.tensor([1e8]), torch.tensor([1.0]), torch.tensor([-1e8])]
    expected = (values[0] + values[1]) + values[2]  # another order of addition gives 1.0
    group = ThreadGroup(3, prefetch=1)

    def body(comm):
        results = []
        for turn in range(30):
            time.sleep(0.0005 * ((comm.rank + turn) % 3))
            tensor = values[comm.rank].clone()
            comm.all_reduce(tensor, (0, 1, 2))
            results.append(tensor.item())
        return results

    for results in run_ranks(group, body).values():
        assert results == [expected.item()] * 30


def test_a_sum_over_some_ranks_leaves_the_others_alone():
    group = ThreadGroup(4, prefetch=1)

    def body(comm):
        tensor = torch.tensor([float(comm.rank)])
        comm.all_reduce(tensor, (2, 3))
        return tensor.item()

    assert run_ranks(group, body, ranks=[2, 3]) == {2: 5.0, 3: 5.0}


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param(lambda comm: comm.receive(1, (1,), torch.float32), id="a receive"),
        pytest.param(lambda comm: [comm.send(torch.zeros(1), 1) for _ in range(2)], id="a send to a full queue"),
        pytest.param(lambda comm: comm.all_reduce(torch.zeros(1), (0, 1)), id="a sum"),
        pytest.param(lambda comm: comm.barrier(), id="a barrier"),
    ],
)
def test_an_abort_releases_a_worker_that_waits_in(wait):
    group = ThreadGroup(2, prefetch=1)
    released = []

    def body() -> None:
        try:
            wait(group.communicator(0))
        except Aborted as failure:
            released.append(failure)

    waiting = threading.Thread(target=body)
    waiting.start()
    time.sleep(0.1)
    assert released == []
    group.abort()
    waiting.join(5)
    assert len(released) == 1


def test_after_an_abort_nobody_waits_again():
    group = ThreadGroup(2, prefetch=1)
    group.abort()
    for call in (
        lambda comm: comm.receive(1, (1,), torch.float32),
        lambda comm: comm.send(torch.zeros(1), 1),
        lambda comm: comm.all_reduce(torch.zeros(1), (0, 1)),
        lambda comm: comm.barrier(),
    ):
        with pytest.raises(Aborted):
            call(group.communicator(0))
