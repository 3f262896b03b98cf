"""Workers as processes of `torchrun`: the same interface as threads have, over torch.distributed.

Gloo on a CPU, NCCL between GPUs. On a CPU sums are made in rank order, as threads make them: the same bits.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from dflash.training.communicator import Communicator, meet
from dflash.training.config import TrainConfig

LONGER = timedelta(minutes=1)
"""How much longer than a training's patience torch's own is: what it says of a hang does not name who is waited for."""


class Doing:
    """What a worker has asked of another last; written by the worker, read by whoever watches it."""

    def __init__(self) -> None:
        self._last, self._since = "", 0.0

    def asks(self, what: str) -> None:
        """Say what is asked. NCCL answers at once, and has the device wait: so it stays said until the next."""
        self._last, self._since = what, time.monotonic()

    def stalled(self, seconds: float) -> str | None:
        """What was asked last, if that is more than so many seconds ago; nothing before the first time."""
        return self._last if self._last and time.monotonic() - self._since > seconds else None


class ProcessGroup:
    """This process's place among all of a training; made once a process, where `torchrun` has set the environment."""

    def __init__(self, config: TrainConfig) -> None:
        backend, patience = "nccl" if config.device == "cuda" else "gloo", timedelta(seconds=config.patience_s) + LONGER
        # Without `device_id`, with which all pairs would share one communicator, and so one queue: features that a
        # drafter is not yet ready for would hold up those for another. NCCL says so, once for each pair.
        dist.init_process_group(backend, timeout=patience)
        rank, number, count = dist.get_rank(), int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        self.ranks: Sequence[int] = (rank,)
        # A host has ranks that follow one another, whoever starts them.
        self.numbers: Mapping[int, int] = {rank - number + each: each for each in range(count)}
        self.doing = Doing()
        self._prefetch = config.prefetch
        # By all processes, in one order.
        self._drafters = dist.new_group(list(config.topology.drafter_ranks), timeout=patience)
        spread = config.topology.target_groups if config.topology.target_gpus > 1 else []
        self._targets = {group: dist.new_group(list(group), timeout=patience) for group in spread}
        self._device = config.device
        # Workers of one host look into the same folders. Those of several have to ask, by a way that needs no GPU.
        several = int(os.environ["WORLD_SIZE"]) > count
        self._hosts = dist.new_group(backend="gloo", timeout=patience) if several else None

    def communicator(self, rank: int) -> Communicator:
        """This worker's end; `rank` is its own."""
        return ProcessCommunicator(rank, self._prefetch, self._drafters, self.doing)

    def mesh(self, rank: int) -> DeviceMesh | None:
        """The target group of `rank`, if its target is spread over one."""
        made = next((made for ranks, made in self._targets.items() if rank in ranks), None)
        return None if made is None else DeviceMesh.from_group(made, self._device)

    def told(self, number: int) -> list[int]:
        """The `number` of every worker, if there are several hosts."""
        if self._hosts is None:
            return [number]
        parts = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, torch.tensor([number]), group=self._hosts)
        return [int(part) for part in parts]

    def wait(self, barrier: threading.Barrier) -> None:
        """Wait for this process's threads at `barrier`, and for all other processes."""
        meet(barrier)
        everyone_is_here()

    def abort(self) -> None:
        """Nothing: a process that fails ends, and `torchrun` then ends the others."""

    def close(self) -> None:
        """Leave the group, when all have come to the end."""
        everyone_is_here()
        dist.destroy_process_group()


class ProcessCommunicator:
    """A worker's end."""

    def __init__(self, rank: int, prefetch: int, drafters: dist.ProcessGroup | None, doing: Doing) -> None:
        self.rank, self.size = rank, dist.get_world_size()
        self._prefetch, self._drafters, self._doing = prefetch, drafters, doing
        self._outgoing: dict[int, deque[tuple[dist.Work, Tensor]]] = {}

    def asks(self, what: str) -> None:
        self._doing.asks(what)

    def send(self, tensor: Tensor, to: int) -> None:
        under_way = self._outgoing.setdefault(to, deque())
        self._doing.asks(f"worker {to} to take features")
        while len(under_way) >= self._prefetch:
            under_way.popleft()[0].wait()
        tensor = tensor.contiguous()
        work = dist.isend(tensor, to)
        assert work is not None
        under_way.append((work, tensor))  # which must live until it is there

    def receive(self, source: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else "cpu"
        tensor = torch.empty(tuple(shape), dtype=dtype, device=device)
        self._doing.asks(f"features of worker {source}")
        dist.recv(tensor, source)
        return tensor

    def all_reduce(self, tensor: Tensor, group: Sequence[int]) -> None:
        self._doing.asks(f"a sum over workers {', '.join(map(str, group))}")
        if tensor.is_cuda:
            dist.all_reduce(tensor, group=self._drafters)
            return
        parts = [torch.empty_like(tensor) for _ in group]
        dist.all_gather(parts, tensor, group=self._drafters)
        tensor.copy_(parts[0])
        for part in parts[1:]:
            tensor += part

    def finish(self) -> None:
        for to, under_way in self._outgoing.items():
            self._doing.asks(f"worker {to} to take features")
            while under_way:
                under_way.popleft()[0].wait()
        self._doing.asks("")

    def meet(self, group: Sequence[int]) -> None:
        self._doing.asks("")  # a disk may be slow
        everyone_is_here(self._drafters)

    def barrier(self) -> None:
        everyone_is_here()


def everyone_is_here(group: dist.ProcessGroup | None = None) -> None:
    """Wait for all of `group`, or of the training, on this process's GPU (`device_of`): NCCL would guess."""
    on_gpu = dist.get_backend(group) == "nccl"
    dist.barrier(group, device_ids=[int(os.environ["LOCAL_RANK"])] if on_gpu else None)
