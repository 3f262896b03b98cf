"""The workers of one training that are this process's: all, or one, as threads in front of one compile gate."""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence

import torch
from transformers import PretrainedConfig

from dflash.compilation.gate import CompileGate, Graph
from dflash.errors import UsageError
from dflash.model.parallel import refuse_uneven
from dflash.model.target import window_of
from dflash.model.tiles import TILE
from dflash.progress import Progress
from dflash.training.checkpoints import Checkpoint
from dflash.training.communicator import Aborted, Group, ThreadGroup
from dflash.training.config import TrainConfig
from dflash.training.drafts import draft_config
from dflash.training.regions import Regions
from dflash.training.sources import Models, layers_of
from dflash.training.watch import Watch
from dflash.training.workers import DrafterWorker, TargetWorker, device_of, dtype_of

Worker = TargetWorker | DrafterWorker


class Crew:
    """Owns the threads. Build one and `run()` it, once."""

    def __init__(
        self,
        config: TrainConfig,
        models: Models,
        buckets: Collection[int],
        progress: Progress,
        on_graph: Callable[[str, Graph], object] = lambda worker, graph: None,
        group: Group | None = None,
    ) -> None:
        """`on_graph` is told of each graph that a worker's turn makes, with the worker's role and rank. `group` is by
        which workers reach each other: they are all threads of this process, if it is left out.

        Raises:
            UsageError: the configuration does not fit the target.
        """
        # Eight workers share the cores: one thread each. Set before any compile, since a graph is guarded on it.
        torch.set_num_threads(1)
        self.config, self.progress = config, progress
        self.draft_config = draft_config(models.target_config, config.draft)
        self.group: Group = group or ThreadGroup(config.topology.size, config.prefetch)
        self.stopping = threading.Event()
        self.warm_seconds: dict[str, float] = {}
        self._models, self._buckets, self._in_turn = models, sorted(buckets), ""
        self._tied = bool(models.target_config.tie_word_embeddings)
        refuse_odd_lengths(config, self._buckets)
        refuse_long_rows(models.target_config, config.captured, self._buckets)
        refuse_uneven(models.target_config, config.topology.target_gpus)
        if config.kl:
            _refuse_scaled_logits(models.target_config)
        self._gate = CompileGate(
            enabled=config.compile,
            limit=3 * config.topology.size * len(self._buckets) + 1,  # first, middle and last layer
            on_graph=lambda graph: on_graph(self._in_turn, graph),
        )
        self._regions = Regions(self._gate, self.draft_config, taught=config.kl > 0)
        self._failures: list[BaseException] = []

    def run(self, body: Callable[[Worker, int], None], saved: Checkpoint | None = None) -> None:
        """Set up this process's workers, from `saved` where it is given, run their graphs in turn, close the set, and
        let each do `body(worker, rank)`. An interrupt (Ctrl-C) sets `stopping`.

        Raises:
            OutOfMemory: a worker's GPU was too small.
            whatever else the first worker raised; no thread is left then.
        """
        ranks = self.group.ranks
        sealed = threading.Barrier(len(ranks), action=self._gate.seal)
        ended: list[int] = []

        def thread(rank: int) -> None:
            place = rank, self.group.numbers[rank]
            watch = Watch(self._role(rank), *place, self.config, self.draft_config, self._buckets, tied=self._tied)
            try:
                # Loading is in turn too: transformers initialises modules under process-wide patches.
                with self._gate.turn():
                    if self._failures or self.stopping.is_set():
                        raise Aborted("the training was stopped")
                    worker = self._warm(rank, saved, watch)
                self.group.wait(sealed)
                body(worker, rank)
            except Aborted:
                sealed.abort()
            except BaseException as failure:
                self._failures.append(watch.named(failure))
                self.group.abort()
                sealed.abort()
            finally:
                ended.append(rank)

        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(thread, rank), name=f"worker-{rank}")
            for rank in ranks
        ]
        for each in threads:
            each.start()
        try:
            self._wait_for(ended, len(threads))
        finally:
            self.group.abort()
            for each in threads:
                each.join()
            self._gate.unseal()
        if self._failures:
            raise self._failures[0]

    def _role(self, rank: int) -> str:
        return "target" if rank in self.config.topology.target_ranks else "drafter"

    def _warm(self, rank: int, saved: Checkpoint | None, watch: Watch) -> Worker:
        begun, role = time.monotonic(), self._role(rank)
        self._in_turn = f"{role} {rank}"
        worker = self._worker(rank, saved)
        worker.warm(watch.each())
        watch.warmed()
        self.warm_seconds[self._in_turn] = time.monotonic() - begun
        self.progress.note(f"worker {rank} ({role}) is warm ({time.monotonic() - begun:.1f} s)")
        return worker

    def _worker(self, rank: int, saved: Checkpoint | None) -> Worker:
        comm = self.group.communicator(rank)
        device = device_of(rank, self.config, self.group.numbers)
        dtype = dtype_of(self.config)
        topology, target = self.config.topology, None
        if rank in topology.target_ranks or topology.colocated:
            layer_ids = self.draft_config.dflash_config["target_layer_ids"]
            model = self._models.target(device, dtype, self.group.mesh(rank))
            target = TargetWorker(comm, self.config, model, layer_ids, self._regions, device)
            if not topology.colocated:
                return target
        draft = self._models.draft(self.draft_config, device)
        ends = self._models.ends(device, dtype)
        worker = DrafterWorker(comm, self.config, ends, draft, self._regions, device, target)
        if saved:
            worker.restore(saved)
        return worker

    def _wait_for(self, ended: Collection[int], count: int) -> None:
        """Wait until `count` workers have ended; an interrupt meanwhile is the wish to stop, and the waiting goes on.

        Not by `Thread.join`: interrupted, it takes a running thread for dead (bpo-45274).
        """
        while True:
            try:
                while len(ended) < count:
                    time.sleep(0.05)
                return
            except KeyboardInterrupt:
                self.stopping.set()


def refuse_odd_lengths(config: TrainConfig, buckets: Sequence[int]) -> None:
    """On GPUs attention goes by tiles, which rows and drafted tokens must fill up."""
    if config.device != "cuda":
        return
    drafted = config.anchors * config.draft.block
    if drafted % TILE:
        raise UsageError(
            f"{config.anchors} anchors of {config.draft.block} tokens are {drafted}, no multiple of {TILE}",
            where="train.anchors",
            cure=f"choose a multiple of {TILE // math.gcd(TILE, config.draft.block)}",
        )
    if odd := [length for length in buckets if length % TILE]:
        raise UsageError(
            f"rows of {odd[0]} tokens are no multiple of {TILE}", where="data.buckets", cure=f"use multiples of {TILE}"
        )


def refuse_long_rows(target: PretrainedConfig, features: int | None, buckets: Sequence[int]) -> None:
    """The layers of a target that run for its `features` are given all of a document to look at, which one with a
    window would not do."""
    window = window_of(target, layers_of(target, features))
    if window and buckets and buckets[-1] > window:
        raise UsageError(
            f"rows of {buckets[-1]} tokens are longer than the {window} that the target's layers look back",
            where="data.buckets",
            cure=f"use rows of at most {window} tokens, or another target",
        )


def _refuse_scaled_logits(target: PretrainedConfig) -> None:
    """What a model makes of its LM head's logits is not in the distribution that a drafter would be taught."""
    if done := [name for name in _AFTER_THE_HEAD if getattr(target, name, None) not in (None, 1.0)]:
        raise UsageError(
            f"the target's {done[0]} ({getattr(target, done[0])}) changes its logits, which kl does not know of",
            where="train.kl",
            cure="set train.kl to 0",
        )


_AFTER_THE_HEAD = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Gemma's, Cohere's and Granite's names, in transformers, for what is done to logits."""
