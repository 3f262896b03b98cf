"""How workers reach each other: one small interface, here for threads of one process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

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

    def barrier(self) -> None:
        """Wait for all workers."""


class ThreadGroup:
    """What the threads of one training share."""

    def __init__(self, size: int, prefetch: int, at_barrier: Callable[[], None] | None = None) -> None:
        self.size, self._prefetch = size, prefetch
        self._changed = threading.Condition()
        self._channels: dict[tuple[int, int], deque[Tensor]] = {}
        self._sums: dict[tuple[int, ...], _Sum] = {}
        self._barrier = threading.Barrier(size, action=at_barrier)
        self._aborted = False

    def communicator(self, rank: int) -> ThreadCommunicator:
        """The end of worker `rank`."""
        return ThreadCommunicator(self, rank)

    def abort(self) -> None:
        """Release every waiting worker with `Aborted`, now and for good."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()
        self._barrier.abort()
        for total in list(self._sums.values()):
            total.added.abort()
            total.taken.abort()

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
        try:
            barrier.wait()
        except threading.BrokenBarrierError:
            raise Aborted("the training was stopped") from None

    def barrier(self) -> None:
        self.wait(self._barrier)


class _Sum:
    """One group's all-reduce, used again and again: everyone brings a tensor, the sum is made once, in rank order."""

    def __init__(self, group: tuple[int, ...]) -> None:
        self.group = group
        self.parts: dict[int, Tensor] = {}
        self.total = torch.empty(0)
        self.added = threading.Barrier(len(group), action=self._add)
        self.taken = threading.Barrier(len(group))

    def _add(self) -> None:
        first, *others = (self.parts[rank] for rank in self.group)
        self.total = first.clone()
        for part in others:
            self.total += part


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
        total = self._group.sum_of(tuple(group))
        total.parts[self.rank] = tensor
        self._group.wait(total.added)
        result = total.total
        self._group.wait(total.taken)
        tensor.copy_(result)

    def barrier(self) -> None:
        self._group.barrier()
