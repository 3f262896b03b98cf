"""What a worker is doing to its GPU's memory, so that running out of it can be told with the sizes that would fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from transformers import PretrainedConfig

from dflash.errors import OutOfMemory
from dflash.training.config import TrainConfig
from dflash.training.fitting import (
    Memory,
    Sizes,
    corrected,
    drafter_cost,
    gib,
    loading_cure,
    sizes_cure,
    target_cost,
)

LOADING, TRAINING = "while it loaded its models", "while it trained"


class Watch:
    """Of one worker, in its own thread."""

    def __init__(
        self,
        worker: str,
        rank: int,
        number: int,
        config: TrainConfig,
        draft: PretrainedConfig,
        buckets: Sequence[int],
        *,
        tied: bool,
    ) -> None:
        """`worker` is its role, `number` that of its GPU, `draft` the drafter's configuration, `buckets` in rising
        order; `tied` as for `drafter_cost`."""
        self._worker, self._rank, self._config, self._draft, self._tied = worker, rank, config, draft, tied
        self._device = torch.device("cuda", number) if config.device == "cuda" else torch.device("cpu")
        self._buckets, self._length = buckets, max(buckets, default=0)
        self._doing, self._held = LOADING, 0
        self.peaks: dict[int, int] = {}
        """The most bytes that tensors took while the worker warmed up, by bucket."""

    def each(self) -> Iterator[int]:
        """The buckets in turn, for a worker that has its models and warms up on each."""
        gpu = self._device.type == "cuda"
        self._held = torch.cuda.memory_allocated(self._device) if gpu else 0
        for length in self._buckets:
            self._length, self._doing = length, f"in the warm-up on rows of {length} tokens"
            if gpu:
                torch.cuda.reset_peak_memory_stats(self._device)
            yield length
            if gpu:
                self.peaks[length] = torch.cuda.max_memory_allocated(self._device)
        self._doing = "in the warm-up of its optimizer"

    def warmed(self) -> None:
        """The worker's warm-up is over."""
        self._doing = TRAINING

    def named(self, failure: BaseException) -> BaseException:
        """The failure, or in place of torch's lack of memory one that says what would fit."""
        lack = lack_of_memory(failure)
        if lack is None:
            return failure
        told = self._out_of_memory(memory_of(self._device), wanted_by(str(lack)))
        told.__cause__ = failure
        return told

    def _out_of_memory(self, memory: Memory | None, wanted: float) -> OutOfMemory:
        config, drafts, loading = self._config, self._worker == "drafter", self._doing == LOADING
        what = f"worker {self._rank} ({self._worker}) ran out of memory {self._doing}"
        if not loading:
            what += f", with train.rows={config.rows}" + (f" and train.anchors={config.anchors}" if drafts else "")
        if wanted:
            what += f": it wanted {gib(wanted)} more"
        if memory is None:
            return OutOfMemory(what, where=str(self._device), cure="lower train.rows or train.anchors")
        what += f"; of {gib(memory.total)} it had {gib(memory.reserved)}, and others {gib(memory.others)}"
        counted = drafter_cost(config, self._draft, tied=self._tied)
        if loading:
            alone = drafts and not config.topology.colocated  # a target's parameters are not counted
            cure = loading_cure(counted.kept if alone else None, memory, config.dtype)
            if not drafts:
                cure += ", or spread the target over several with train.topology.target_gpus and launcher: torchrun"
        else:
            sizes = Sizes(config.rows, self._length, config.anchors, config.draft.block)
            cost = replace(counted, kept=self._held) if drafts else target_cost(config, self._draft, self._held)
            cost = corrected(cost, sizes, self.peaks)
            cure = sizes_cure(cost, sizes, self._buckets, memory, wanted=wanted, dtype=config.dtype)
            if self._doing == TRAINING:
                cure += "; with other sizes it begins anew, in another folder"
        return OutOfMemory(what, where=str(self._device), cure=cure)


LACKS = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "Cuda failure 2 'out of memory'")
"""What CUDA, cuBLAS and NCCL say of a lack of memory for what is theirs, which torch does not allocate."""


def lack_of_memory(failure: BaseException) -> BaseException | None:
    """The lack of memory that is, or is behind, `failure`: compilers wrap it in exceptions of their own."""
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, torch.OutOfMemoryError) or any(words in str(cause) for words in LACKS):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def wanted_by(message: str) -> float:
    """The bytes that torch says it tried to allocate, 0 if it does not say."""
    said = re.search(r"Tried to allocate ([\d.]+) ([KMG])iB", message)
    return float(said[1]) * 2 ** {"K": 10, "M": 20, "G": 30}[said[2]] if said else 0.0


def memory_of(device: torch.device) -> Memory | None:
    """A GPU's memory now; of a CPU nothing is known: there the system ends a process."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return Memory(total, free, torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device))
