"""One training: eight workers (or any N + M) as threads of this process, in front of one compile gate."""

from __future__ import annotations

import contextvars
import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dflash.atomic import whole_folder
from dflash.compilation.gate import CompileGate
from dflash.compilation.hits import cache_counts
from dflash.errors import CheckpointError, UsageError
from dflash.model.layout import load_draft, write_layout
from dflash.model.target import load_target, target_config
from dflash.progress import Progress
from dflash.training.batches import Batches
from dflash.training.checkpoints import Checkpoint, Checkpoints
from dflash.training.communicator import Aborted, ThreadGroup
from dflash.training.config import TrainConfig
from dflash.training.drafts import draft_config, fresh_draft
from dflash.training.metrics import MetricLog
from dflash.training.packing import Rows
from dflash.training.regions import Regions
from dflash.training.workers import DrafterWorker, TargetWorker

Worker = TargetWorker | DrafterWorker


class Trainer:
    """Owns the threads. Build one, then `warm()` it or `train()` it, once."""

    def __init__(self, config: TrainConfig, target: Path, packed: Mapping[int, Rows], progress: Progress) -> None:
        """`target` is a model folder, `packed` the rows by bucket.

        Raises:
            UsageError: the configuration does not fit the target.
        """
        # Eight workers share the cores: one thread each. Set before any compile, since a graph is guarded on it.
        torch.set_num_threads(1)
        self.config, self.progress = config, progress
        self.gate = CompileGate(enabled=config.compile)
        self.regions = Regions(self.gate)
        self.draft_config = draft_config(target_config(target), config.draft)
        refuse_mask_in(packed, self.draft_config.dflash_config["mask_token_id"])
        self._target, self._packed = target, packed
        self._group = ThreadGroup(config.topology.size, config.prefetch)
        self._failures: list[BaseException] = []
        self._stopping = threading.Event()
        self.warm_seconds: dict[str, float] = {}

    def warm(self, roles: Collection[str]) -> None:
        """Set up workers, run their graphs in turn, and end: one worker of a single role, or the whole layout."""
        topology = self.config.topology
        alone = {"target": range(1), "drafter": range(topology.targets, topology.targets + 1)}
        ranks = range(topology.size) if len(roles) > 1 else alone[next(iter(roles))]
        self._in_threads(lambda worker, rank: None, ranks)

    def train(self, out: Path) -> dict[str, Any]:
        """Train to the last step; the drafter is in `out/draft`, and the figures of the end are returned.

        Goes on from the newest whole checkpoint in `out/scratch/checkpoints`. An interrupt (Ctrl-C) lets the
        current step end and writes a checkpoint first.

        Raises:
            CheckpointError: the checkpoint was made with another configuration.
            KeyboardInterrupt: the training was interrupted, and can go on.
        """
        checkpoints = Checkpoints(out / "scratch" / "checkpoints")
        saved = checkpoints.latest(self.progress)
        first = saved.step if saved else 0
        if saved:
            self._refuse_other_configuration(saved)
            self.progress.note(f"train: resumed at step {first} of {self.config.steps}")
        log = MetricLog(out / "metrics.jsonl", first)
        last: dict[str, Any] = {"step": first}
        lead = self.config.topology.drafter_ranks[0]
        begun = time.monotonic()

        def finished(worker: DrafterWorker, step: int, figures: dict[str, Any]) -> None:
            seconds = time.monotonic() - begun
            figures["tokens_per_s"] = round(figures.pop("tokens") * (step - first) / seconds, 1)
            last.update(figures, step=step)
            log.write({"step": step, **{k: v for k, v in figures.items() if k != "stop"}})
            self.progress.update(step, self.config.steps, {k: figures[k] for k in SHOWN})
            if step % self.config.checkpoint_every == 0 or step == self.config.steps or figures["stop"]:
                checkpoints.save(
                    step,
                    {"optimizer": worker.optimizer_state()},
                    {"config": asdict(self.config)},
                    extra=lambda folder: write_layout(worker.draft, folder),
                )

        def run(worker: Worker, rank: int) -> None:
            nonlocal begun
            batches = Batches(self._packed, rows=self.config.rows, anchors=self.config.anchors, seed=self.config.seed)
            if isinstance(worker, TargetWorker):
                worker.run(batches, first)
                return
            if rank == lead:
                begun = time.monotonic()

            def report(step: int, figures: dict[str, Any]) -> None:
                if rank == lead:
                    finished(worker, step, figures)

            worker.run(batches, first, report, self._stopping.is_set)
            if last.get("stop"):
                self._group.abort()

        try:
            self._in_threads(run, range(self.config.topology.size), saved)
        finally:
            log.close()
        if self._stopping.is_set():
            raise KeyboardInterrupt
        newest = checkpoints.latest(self.progress)
        if newest is None or newest.step != self.config.steps:
            raise CheckpointError("the last checkpoint can not be read back", where=str(checkpoints.folder))
        with whole_folder(out / "draft") as folder:
            write_layout(load_draft(newest.folder), folder)
        return {
            "resumed_at": first,
            "warm_s": {name: round(seconds, 2) for name, seconds in self.warm_seconds.items()},
            **{k: last[k] for k in ("step", *SHOWN) if k in last},
            "cache": cache_counts().to_json(),
        }

    def _refuse_other_configuration(self, saved: Checkpoint) -> None:
        mine, theirs = json.loads(json.dumps(asdict(self.config))), saved.state["config"]
        differing = sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k))
        if differing:
            raise CheckpointError(
                f"was made with another configuration: {', '.join(differing)}",
                where=str(saved.folder),
                cure="train into another folder, or set those back",
            )

    def _worker(self, rank: int, saved: Checkpoint | None) -> Worker:
        comm = self._group.communicator(rank)
        target = load_target(self._target)
        if rank < self.config.topology.targets:
            layer_ids = self.draft_config.dflash_config["target_layer_ids"]
            return TargetWorker(comm, self.config, target, layer_ids, self.regions)
        draft = fresh_draft(self.draft_config, self.config.seed)
        worker = DrafterWorker(comm, self.config, target, draft, self.regions)
        if saved:
            worker.restore(saved)
        return worker

    def _in_threads(
        self, run: Callable[[Worker, int], None], ranks: Sequence[int], saved: Checkpoint | None = None
    ) -> None:
        sealed = threading.Barrier(len(ranks), action=self.gate.seal)
        ended: list[int] = []

        def body(rank: int) -> None:
            try:
                # Loading is in turn too: transformers initialises modules under process-wide patches.
                with self.gate.turn():
                    begun = time.monotonic()
                    worker = self._worker(rank, saved)
                    worker.warm(sorted(self._packed))
                    role = "target" if isinstance(worker, TargetWorker) else "drafter"
                    self.warm_seconds[f"{role} {rank}"] = time.monotonic() - begun
                    self.progress.note(f"worker {rank} ({role}) is warm ({time.monotonic() - begun:.1f} s)")
                self._group.wait(sealed)
                run(worker, rank)
            except Aborted:
                pass
            except BaseException as failure:
                self._failures.append(failure)
                self._group.abort()
                sealed.abort()
            finally:
                ended.append(rank)

        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(body, rank), name=f"worker-{rank}")
            for rank in ranks
        ]
        for thread in threads:
            thread.start()
        try:
            self._wait_for(ended, len(threads))
        finally:
            self._group.abort()
            for thread in threads:
                thread.join()
            self.gate.unseal()
        if self._failures:
            raise self._failures[0]

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
                self._stopping.set()


def refuse_mask_in(packed: Mapping[int, Rows], mask: int) -> None:
    """Raise UsageError if the text holds the mask token: the drafter could not tell its blanks from words."""
    for bucket, rows in packed.items():
        places = (rows.tokens == mask).nonzero()
        if len(places):
            raise UsageError(
                f"the mask token {mask} is used by the data (bucket {bucket}, row {int(places[0, 0])})",
                where="train.draft.mask_token_id",
                cure="name a vocabulary row that no text uses",
            )


SHOWN = ("loss", "accuracy", "accept_len", "tokens_per_s", "lr")
"""The figures a person watches."""
