"""How workers reach each other: one small interface, here for threads of one process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from dflash.errors import DFlashError


class Aborted(DFlashError):
    """Another worker failed or asked everyone to stop; whoever waits for it is released with this."""


class Communicator(Protocol):
    """One worker's end. Every call blocks until its partners have come, or raises `Aborted`."""

    rank: int
    size: int

    def send(self, tensor: Tensor, to: int) -> None:
        """Hand `tensor` to `to`, in order; may run ahead of the receiver by the prefetch depth."""

    def receive(self, source: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The next tensor from `source`; its shape and dtype are known from the schedule."""

    def all_reduce(self, tensor: Tensor, group: Sequence[int]) -> None:
        """Replace `tensor` by the sum over `group`, added in rank order: the same bits on every rank, every run."""

    def asks(self, what: str) -> None:
        """Say what this worker waits for now, where that is not by one of the calls here."""

    def finish(self) -> None:
        """Wait until all that was sent has arrived; nothing is asked of others any more."""

    def meet(self, group: Sequence[int]) -> None:
        """Wait for all of `group`, one of which may have something to write first."""

    def barrier(self) -> None:
        """Wait for all workers."""


def meet(barrier: threading.Barrier) -> None:
    """Wait at `barrier`; raises `Aborted` when it was broken."""
    try:
        barrier.wait()
    except threading.BrokenBarrierError:
        raise Aborted("the training was stopped") from None


class Group(Protocol):
    """All workers of a training, as one process sees them."""

    ranks: Sequence[int]
    """The workers of this process."""

    numbers: Mapping[int, int]
    """The workers of this host, each with its number there, which is that of its GPU."""

    def communicator(self, rank: int) -> Communicator:
        """The end of worker `rank`, one of this process."""

    def mesh(self, rank: int) -> DeviceMesh | None:
        """The processes over which the target of worker `rank` is spread; None where it is whole."""

    def told(self, number: int) -> list[int]:
        """Each worker's `number` where they are on several hosts; where they are on one, whose folders all see, this
        process's alone."""

    def wait(self, barrier: threading.Barrier) -> None:
        """Wait for this process's threads at `barrier`, and for all other workers; or raise `Aborted`."""

    def abort(self) -> None:
        """Release every waiting worker of this process with `Aborted`, now and for good."""


class ThreadGroup:
    """What the threads of one training share."""

    def __init__(
        self,
        size: int,
        prefetch: int,
        at_barrier: Callable[[], None] | None = None,
        numbers: Mapping[int, int] | None = None,
    ) -> None:
        """`numbers` are those that workers have on this host, where it has not got all of them, or has them in another
        order: then it has only these."""
        self.size, self._prefetch = size, prefetch
        self.numbers: Mapping[int, int] = {rank: rank for rank in range(size)} if numbers is None else numbers
        self.ranks: Sequence[int] = tuple(self.numbers)
        self._changed = threading.Condition()
        self._channels: dict[tuple[int, int], deque[Tensor]] = {}
        self._sums: dict[tuple[int, ...], _Sum] = {}
        self._barrier = threading.Barrier(size, action=at_barrier)
        self._aborted = False

    def communicator(self, rank: int) -> ThreadCommunicator:
        """The end of worker `rank`."""
        return ThreadCommunicator(self, rank)

    def mesh(self, rank: int) -> None:
        """Threads have whole targets."""

    def told(self, number: int) -> list[int]:
        return [number]

    def abort(self) -> None:
        with self._changed:
            self._aborted = True
            self._changed.notify_all()
        self._barrier.abort()
        for total in list(self._sums.values()):
            total.abort()

    def send(self, pair: tuple[int, int], tensor: Tensor) -> None:
        with self._changed:
            channel = self._channels.setdefault(pair, deque())
            self._wait(lambda: len(channel) < self._prefetch)
            channel.append(tensor)
            self._changed.notify_all()

    def receive(self, pair: tuple[int, int]) -> Tensor:
        with self._changed:
            channel = self._channels.setdefault(pair, deque())
            self._wait(lambda: bool(channel))
            tensor = channel.popleft()
            self._changed.notify_all()
            return tensor

    def _wait(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._aborted or ready())
        if self._aborted:
            raise Aborted("the training was stopped")

    def sum_of(self, group: tuple[int, ...]) -> _Sum:
        with self._changed:
            if self._aborted:
                raise Aborted("the training was stopped")
            return self._sums.setdefault(group, _Sum(group))

    def wait(self, barrier: threading.Barrier) -> None:
        meet(barrier)

    def barrier(self) -> None:
        self.wait(self._barrier)


class _Sum:
    """One group's all-reduce, used again and again: everyone shows its tensor, and makes the sum of its own share."""

    def __init__(self, group: tuple[int, ...]) -> None:
        self.group = group
        self.parts: dict[int, Tensor] = {}
        self.shown, self.added, self.taken = (threading.Barrier(len(group)) for _ in range(3))

    def abort(self) -> None:
        for barrier in (self.shown, self.added, self.taken):
            barrier.abort()


class ThreadCommunicator:
    """A worker's end of a `ThreadGroup`."""

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self._group, self.rank, self.size = group, rank, group.size

    def send(self, tensor: Tensor, to: int) -> None:
        self._group.send((self.rank, to), tensor)

    def receive(self, source: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        tensor = self._group.receive((source, self.rank))
        if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
            raise DFlashError(
                f"worker {source} sent {tuple(tensor.shape)} {tensor.dtype} to worker {self.rank}, "
                f"which expects {tuple(shape)} {dtype}: their schedules differ"
            )
        return tensor

    def all_reduce(self, tensor: Tensor, group: Sequence[int]) -> None:
        # Each rank adds up one share of the elements and then takes the others' shares, so that all links, or cores,
        # are used. On GPUs nothing waits: copies between devices are ordered by the devices' own default streams.
        total = self._group.sum_of(tuple(group))
        total.parts[self.rank] = tensor.view(-1)
        self._group.wait(total.shown)
        mine = total.group.index(self.rank)
        shares = {rank: part.tensor_split(len(group)) for rank, part in total.parts.items()}
        first, *others = (shares[rank][mine].to(tensor.device) for rank in total.group)
        added = first.clone()
        for part in others:
            added += part
        shares[self.rank][mine].copy_(added)
        self._group.wait(total.added)
        for place, rank in enumerate(total.group):
            if rank != self.rank:
                shares[self.rank][place].copy_(shares[rank][place])
        self._group.wait(total.taken)

    def asks(self, what: str) -> None:
        """Nothing: who hangs is a question to processes."""

    def finish(self) -> None:
        """Nothing: what is in a channel stays there."""

    def meet(self, group: Sequence[int]) -> None:
        self.all_reduce(torch.zeros(1), group)

    def barrier(self) -> None:
        self._group.barrier()
