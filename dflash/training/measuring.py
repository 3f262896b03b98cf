"""What each role of a training needs on one device, measured: the figures that `dflash.training.costs` goes by.

The roles have the device one after the other, each with the training's own worker in front of the compile gate. Models
and text are random, of the pipeline's shapes, so that neither has to be there yet.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor
from transformers import PretrainedConfig

from dflash.compilation.gate import CompileGate
from dflash.errors import OutOfMemory, UsageError
from dflash.progress import Progress
from dflash.training.batches import Batches
from dflash.training.config import Topology, TrainConfig
from dflash.training.costs import Figures
from dflash.training.crew import Worker, refuse_long_rows, refuse_odd_lengths
from dflash.training.drafts import draft_config
from dflash.training.fitting import drafter_cost
from dflash.training.heldout import HeldOut
from dflash.training.moments import Moment, now, seconds
from dflash.training.packing import Rows
from dflash.training.regions import Regions
from dflash.training.sources import Random
from dflash.training.workers import DrafterWorker, TargetWorker, device_of, dtype_of

WARM, STEPS = 3, 12
"""Steps before the clock runs, and while it does."""


def measure(
    config: TrainConfig,
    target: PretrainedConfig,
    buckets: Sequence[int],
    link_bytes_per_s: float,
    progress: Progress,
) -> Figures:
    """The figures of `config`'s training for `target`, with rows of the largest bucket of which everything is trained
    on: the most that a row can ask for. A GPU's work is timed by the GPU itself.

    `link_bytes_per_s`, over which gradients are summed, can not be measured on one device and goes into the figures as
    it is. On a CPU memory is not measured.

    Raises:
        UsageError: the configuration does not fit the target, or a role does not fit the device.
    """
    bench = Bench(config, target, buckets)
    progress.note(f"a target, with rows of {bench.length} tokens on {bench.device}")
    made, target_bytes = bench.target()
    progress.note("a drafter")
    trained, drafter_bytes = bench.drafter()

    sent = made.moments("send")[config.accumulate * WARM :]
    steps = trained.steps()[WARM:]
    return Figures(
        target_s=median(seconds(*pair) for pair in pairwise(sent)),
        draft_s=median(seconds(begun, ended) for begun, ended, _ in steps) / config.accumulate,
        update_s=median(seconds(ended, following) for _, ended, following in steps),
        gradient_bytes=trained.largest_sum,
        feature_bytes=made.largest_sent,
        link_bytes_per_s=link_bytes_per_s,
        tokens=config.rows * bench.length,
        accumulate=config.accumulate,
        prefetch=config.prefetch,
        target_bytes=target_bytes,
        drafter_bytes=drafter_bytes,
        memory_bytes=total_memory(bench.device) if bench.device.type == "cuda" else None,
    )


class Bench:
    """One device, and what workers on it are made of."""

    def __init__(self, config: TrainConfig, target: PretrainedConfig, buckets: Sequence[int]) -> None:
        """Raises UsageError: the configuration does not fit the target, or there is no GPU for it."""
        if config.device == "cuda" and not torch.cuda.is_available():
            raise UsageError("this is measured on a GPU, and torch sees none", cure="name a host that has one: --host")
        torch.set_num_threads(1)  # as a training's workers have it
        self._shape = draft_config(target, config.draft)
        refuse_odd_lengths(config, sorted(buckets))
        refuse_long_rows(target, config.captured, sorted(buckets))
        self._models, self.length = Random(target, config.captured), max(buckets)
        steps = WARM + STEPS + 1  # a step ends where the next begins
        # One worker, with the steps that any has. Trained on random numbers it may well come to one that is not finite.
        self._config = replace(config, topology=Topology(0, 1), steps=steps, checkpoint_every=steps, not_finite="skip")
        self.device, self._dtype = device_of(0, self._config, {0: 0}), dtype_of(config)
        self._batches = random_batches(config, self.length, 4 * config.rows, target.vocab_size)

    def target(self) -> tuple[Alone, int | None]:
        """Run a target worker; what it asked of others, and its peak memory in bytes."""
        weights = self._models.target(torch.device("meta"), self._dtype).parameters()
        self._refuse_large("target", sum(each.nbytes for each in weights))
        return self._run("target")

    def drafter(self) -> tuple[Alone, int | None]:
        """As `target`, of a drafter worker."""
        tied = bool(self._models.target_config.tie_word_embeddings)
        self._refuse_large("drafter", int(drafter_cost(self._config, self._shape, tied=tied).kept))
        return self._run("drafter")

    def _run(self, role: str) -> tuple[Alone, int | None]:
        comm, gate, on_gpu = Alone(self.device), CompileGate(enabled=self._config.compile), self.device.type == "cuda"
        if on_gpu:
            gc.collect()  # what was here before
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        try:
            with gate.turn():
                worker = self._worker(role, comm, Regions(gate, self._shape, taught=self._config.kl > 0))
                worker.warm([self.length])
            none = HeldOut({}, self._config)
            with gate.sealed():
                if isinstance(worker, TargetWorker):
                    worker.run(self._batches, none, 0)
                else:
                    worker.run(self._batches, none, 0, _ignore, _ignore, lambda: False)
        except torch.OutOfMemoryError as failure:
            raise self._too_large(role) from failure
        return comm, torch.cuda.max_memory_allocated(self.device) if on_gpu else None

    def _worker(self, role: str, comm: Alone, regions: Regions) -> Worker:
        if role == "target":
            layer_ids = self._shape.dflash_config["target_layer_ids"]
            model = self._models.target(self.device, self._dtype)
            return TargetWorker(comm, self._config, model, layer_ids, regions, self.device)
        draft, ends = self._models.draft(self._shape, self.device), self._models.ends(self.device, self._dtype)
        return DrafterWorker(comm, self._config, ends, draft, regions, self.device)

    def _refuse_large(self, role: str, needed: int) -> None:
        """Before it is tried, since a system may end a process that asks for more memory than there is."""
        if needed > total_memory(self.device):
            raise self._too_large(role)

    def _too_large(self, role: str) -> OutOfMemory:
        return OutOfMemory(
            f"a {role} does not fit into the {total_memory(self.device) / 2**30:.1f} GiB of one device "
            f"({self.device}) with {self._config.rows} rows of {self.length} tokens",
            where="train.rows",
            cure="lower train.rows or the longest of data.buckets, or choose a smaller target",
        )


class Alone:
    """The end of a worker that has nobody beside it: features are there at once, and a sum is its own part. It keeps
    what it was asked for, and at which moment of the device's work."""

    rank, size = 0, 1

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._asked: list[tuple[str, Moment]] = []
        self._features: dict[tuple[int, ...], Tensor] = {}
        self.largest_sum = self.largest_sent = 0

    def send(self, tensor: Tensor, to: int) -> None:
        self._asked.append(("send", now(self._device)))
        self.largest_sent = max(self.largest_sent, tensor.nbytes)

    def receive(self, source: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        self._asked.append(("receive", now(self._device)))
        size = tuple(shape)
        if size not in self._features:
            self._features[size] = torch.randn(size, dtype=dtype, device=self._device)
        return self._features[size]

    def all_reduce(self, tensor: Tensor, group: Sequence[int]) -> None:
        self._asked.append(("sum", now(self._device)))
        self.largest_sum = max(self.largest_sum, tensor.nbytes)

    def asks(self, what: str) -> None:
        """There is nobody who would want to know."""

    def finish(self) -> None:
        """Nothing is under way."""

    def meet(self, group: Sequence[int]) -> None:
        """There is nobody to wait for."""

    def barrier(self) -> None:
        """There is nobody to wait for."""

    def moments(self, what: str) -> list[Moment]:
        """When it was asked for `what`, in order."""
        return [moment for asked, moment in self._asked if asked == what]

    def steps(self) -> list[tuple[Moment, Moment, Moment]]:
        """Of each step of a drafter but the last, when it began its micro-batches and ended them, and when it began the
        next step's: micro-batches lie between the last sum before them and the first after them."""
        begun, ended = [], []
        for (one, before), (other, after) in pairwise(self._asked):
            if (one, other) == ("sum", "receive"):
                begun.append(before)
            elif (one, other) == ("receive", "sum"):
                ended.append(after)
        return list(zip(begun, ended, begun[1:], strict=False))


def total_memory(device: torch.device) -> int:
    """All memory of a GPU, or of this machine, in bytes."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def random_batches(config: TrainConfig, length: int, count: int, vocabulary: int) -> Batches:
    """Micro-batches of `count` rows of random text, one document each, all of it trained on."""
    rows = Rows(
        torch.randint(0, vocabulary, (count, length), dtype=torch.int32, generator=torch.Generator().manual_seed(0)),
        torch.zeros(count, length, dtype=torch.int32),
        torch.arange(length, dtype=torch.int32).expand(count, -1),
        torch.ones(count, length, dtype=torch.bool),
    )
    return Batches({length: rows}, rows=config.rows, anchors=config.anchors, seed=0)


def _ignore(*_: object) -> None:
    """What nobody is told."""
