"""How busy a worker's device is: for how much of each step it computes, and does not wait."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from dflash.training.moments import Moment, is_over, now, seconds


class _Step(NamedTuple):
    """A step whose moments may still be to come."""

    number: int
    begun: Moment
    ended: Moment
    parts: list[tuple[Moment, Moment]]


class Meter:
    """Of one worker, in its own thread; it measures while it is `telling`.

    What computes has a moment of the device's work before and after it. Those of a GPU are events, which are read once
    they are over, so that the GPU is never waited for. Its utilisation, as nvidia-smi has it, would not do: NCCL's
    kernels spin on it while they wait for another worker, which counts as busy there. What does count as computing is
    the sums within the layers of a target that is spread over workers, a wait for a processor of the thread that asks
    the device, and between threads the copy of a target's features to a drafter's GPU, which the drafter puts into the
    target's own queue, where it waits for that GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tell: Callable[[dict[str, Any]], object] | None = None
        self._role = ""
        self._since: Moment = 0.0
        self._parts: list[tuple[Moment, Moment]] = []
        self._steps: deque[_Step] = deque()

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """What is asked of the device in this block computes. Not to be nested."""
        if self._tell is None:
            yield
            return
        begun = now(self._device)
        yield
        self._parts.append((begun, now(self._device)))

    def step(self, number: int) -> None:
        """All that is asked of the device for the step has been, whose number counts from 1."""
        if self._tell is None:
            return
        ended = now(self._device)
        self._steps.append(_Step(number, self._since, ended, self._parts))
        self._since, self._parts = ended, []
        self._read_what_is_over()

    def memory(self) -> dict[str, float]:
        """`gpu_gb`: the most that the worker has had of its GPU so far, in GB of 10^9 bytes; nothing on a CPU."""
        if self._device.type != "cuda":
            return {}
        # Quicker than `max_memory_allocated`, which flattens all of it.
        peak = torch.cuda.memory_stats_as_nested_dict(self._device)["allocated_bytes"]["all"]["peak"]
        return {"gpu_gb": round(peak / 1e9, 2)}

    @contextlib.contextmanager
    def telling(self, role: str, tell: Callable[[Mapping[str, Any]], object]) -> Iterator[None]:
        """Measure a worker of this `role` while the block lasts. `tell` gets a row a step: "step_s" is the time from
        the end of the step before to its own, of which the device computed "busy_s". Where the block ends by a failure,
        steps whose work is not over are left out: a device that another worker has left may never end it. A process
        that is killed leaves out those that it has not read yet."""
        self._role, self._tell, self._since = role, tell, now(self._device)
        try:
            yield
            while self._steps:
                self._read()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # a device that is broken answers nothing
                self._read_what_is_over()
            raise
        finally:
            self._tell = None

    def _read_what_is_over(self) -> None:
        while self._steps and is_over(self._steps[0].ended):
            self._read()

    def _read(self) -> None:
        assert self._tell is not None
        number, begun, ended, parts = self._steps.popleft()
        busy, whole = sum((seconds(*part) for part in parts), 0.0), seconds(begun, ended)
        row = {"step": number, "role": self._role, "busy_s": round(busy, 6), "step_s": round(whole, 6)}
        self._tell(row | self.memory())
