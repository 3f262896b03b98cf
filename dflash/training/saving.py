"""Saving without standing still: a training's state is copied into host memory, and written while it goes on.

One process writes all: replicas of the drafter are equal, so any one's state is the whole of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash.progress import Progress
from dflash.training.checkpoints import Checkpoints

State = Mapping[str, Mapping[str, Tensor]]
"""Tensors by file and name, as `Checkpoints.save` takes them."""

TOLD_S = 1.0
"""A training that has to wait longer than this for the checkpoint before is told of it."""


class HostCopy:
    """One set of host memory for a state, used again for each copy."""

    def __init__(self, state: State) -> None:
        """Memory for tensors like those of `state`: pinned for those on a GPU, which else would be waited for."""
        self.tensors = {group: {name: _like(each) for name, each in part.items()} for group, part in state.items()}
        devices = {each.device for part in state.values() for each in part.values() if each.is_cuda}
        self._device = devices.pop() if devices else None
        self._done: torch.cuda.Event | None = None

    def take(self, state: State) -> None:
        """Copy `state` as it is now. On a GPU it is as the calls up to now will leave it, and later ones can change
        nothing about that: copies are made in the order of the current stream. They are there after `wait()`."""
        with torch.no_grad():
            for group, part in state.items():
                for name, tensor in part.items():
                    self.tensors[group][name].copy_(tensor, non_blocking=True)
        if self._device is not None:
            self._done = torch.cuda.Event()
            self._done.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Wait, in any thread, until the copies are there."""
        if self._done is not None:
            with torch.cuda.device(self._device):  # a new thread's is the first GPU, where it would leave a context
                self._done.synchronize()


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


class Saving:
    """Writes checkpoints on a thread of its own, one at a time. At the end of its block, however that comes, all are
    written or have failed, and there is no thread.

    What a write fails with is raised, once, by the first of `check`, `save` and the block's end. A block that ends with
    another failure keeps that one, and the write's is noted.
    """

    def __init__(self, checkpoints: Checkpoints, state: Callable[[], State], progress: Progress) -> None:
        """`state` gives the tensors to save, always the same ones in shape and dtype."""
        self._checkpoints, self._state, self._progress = checkpoints, state, progress
        self._copy = HostCopy(state())
        self._writer: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, step: int, about: Mapping[str, Any], extra: Callable[[Path], None]) -> None:
        """Save the state of now as that of `step`, as `Checkpoints.save` does, and be back when it is copied. Waits for
        the write before: its memory is used again, and to pass a step over could lose twice the work."""
        begun = time.monotonic()
        self._finish()
        if (waited := time.monotonic() - begun) > TOLD_S:
            self._progress.note(
                f"train: step {step} waited {waited:.1f} s for the checkpoint before to be written; "
                "raise train.checkpoint_every, or write to a faster disk"
            )
        self.check()
        self._copy.take(self._state())

        def write() -> None:
            try:
                self._copy.wait()
                self._checkpoints.save(step, self._copy.tensors, about, extra)
            except BaseException as failure:
                self._failure = failure

        self._writer = threading.Thread(target=write, name="checkpoint")
        self._writer.start()

    def check(self) -> None:
        """Raise what a write has failed with."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _finish(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def __enter__(self) -> Saving:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._finish()
        if kind is None:
            self.check()
        elif self._failure is not None:
            self._progress.note(f"train: the last checkpoint could not be written: {self._failure}")
