"""One training: eight workers (or any N + M) that make features and train the drafter on them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash.atomic import whole_folder
from dflash.compilation.gate import Graph
from dflash.compilation.hits import cache_counts
from dflash.errors import CheckpointError, CompilationError, UsageError
from dflash.model.fit import refuse_other_shape
from dflash.model.layout import load_draft, write_description, write_layout
from dflash.model.stored import identity_of
from dflash.progress import Progress
from dflash.training.batches import Batches
from dflash.training.checkpoints import Checkpoint, Checkpoints
from dflash.training.communicator import Group
from dflash.training.config import TrainConfig
from dflash.training.crew import Crew, Worker
from dflash.training.heldout import HeldOut
from dflash.training.metriclog import MetricLog
from dflash.training.packing import Rows
from dflash.training.saving import Saving
from dflash.training.sources import Real
from dflash.training.usage import USAGE, drop_after, log_of
from dflash.training.workers import NotFinite, TargetWorker, dtype_of


class Trainer:
    """Build one, then `train()`, once."""

    def __init__(
        self,
        config: TrainConfig,
        target: Path,
        packed: Mapping[int, Rows],
        progress: Progress,
        *,
        heldout: Mapping[int, Rows] | None = None,
        warm_only: bool = False,
        group: Group | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`target` is a model folder, `packed` the rows by bucket, `heldout` those to measure the drafter with. With
        `warm_only` the first graph that was not in the compile cache ends the training: what is in the cache then is
        not what was proved. Workers are threads, or of `group`; `stopping` is the wish to stop, as Ctrl-C is.

        Raises:
            UsageError: the configuration does not fit the target.
        """
        self.config, self.progress, self._packed = config, progress, packed
        self._heldout = heldout or {}
        buckets = packed.keys() | (self._heldout.keys() if config.evaluate_every else ())
        on_graph = _refuse_to_compile if warm_only else _let_compile
        start = Path(config.start) if config.start else None
        models = Real(target, config.seed, config.captured, start)
        self._crew = Crew(config, models, buckets, progress, on_graph, group)
        if start:
            refuse_other_shape(start, self._crew.draft_config)
        self._target = identity_of(target)
        self._stopping = stopping
        mask = self._crew.draft_config.dflash_config["mask_token_id"]
        refuse_mask_in(packed, mask)
        if config.evaluate_every:
            refuse_mask_in(self._heldout, mask, "held-out row")

    def train(self, out: Path) -> dict[str, Any]:
        """Train to the last step; the drafter is in `out/draft`, and the figures of the end are returned, or nothing
        where the first drafter is another process's.

        Goes on from the newest whole checkpoint in `out/scratch/checkpoints`, with the micro-batches that come next
        there, also where that was trained by another number of workers. Checkpoints are written while it goes on. An
        interrupt (Ctrl-C) lets the current step end and writes a checkpoint first.

        Raises:
            CheckpointError: the checkpoint was made with another configuration.
            CompilationError: `warm_only`, and the compile cache lacks a graph.
            KeyboardInterrupt: the training was interrupted, and can go on.
        """
        crew, checkpoints = self._crew, Checkpoints(out / "scratch" / "checkpoints")
        saved = checkpoints.latest(self.progress)
        first = saved.step if saved else 0
        if len(found := set(crew.group.told(first))) > 1:
            raise CheckpointError(
                f"the hosts of this training see different checkpoints, of steps {', '.join(map(str, sorted(found)))}",
                where=str(checkpoints.folder),
                cure="give them one folder, by a file system that they share",
            )
        lead = self.config.topology.drafter_ranks[0]
        leads = lead in crew.group.ranks
        if saved:
            self._refuse_other_configuration(saved)
            if leads:
                self.progress.note(f"train: resumed at step {first} of {self.config.steps}")
        if leads and self.config.evaluate_every and not HeldOut(self._heldout, self.config):
            self.progress.note(
                "train: there are no held-out rows to measure with: the data had no conversation to spare"
            )
        a_step = self.config.topology.drafters * self.config.accumulate
        shift = saved.state["micro_batches"] - first * a_step if saved else 0
        if leads:
            drop_after(out / USAGE, first, self.config.topology.size)
        log = MetricLog(out / "metrics.jsonl", first) if leads else None
        last: dict[str, Any] = {"step": first}
        begun = time.monotonic()

        def report(step: int, figures: dict[str, Any]) -> None:
            seconds = time.monotonic() - begun
            figures["tokens_per_s"] = round(figures.pop("tokens") * (step - first) / seconds, 1)
            last.update(figures, step=step)
            assert log is not None
            log.write({"step": step, **{k: v for k, v in figures.items() if k not in _NOT_LOGGED}})
            if figures["skipped"]:
                self.progress.note(f"train: step {step} was passed over: its loss or gradient was not finite")
            self.progress.update(step, self.config.steps, {k: figures[k] for k in SHOWN if k in figures})
            if measured := figures.get("heldout"):
                self.progress.note(f"train: step {step}, held out: {_in_words(measured)}")

        def stopping() -> bool:
            return crew.stopping.is_set() or self._stopping()

        def run(worker: Worker, rank: int) -> None:
            nonlocal begun
            config = self.config
            batches = Batches(self._packed, rows=config.rows, anchors=config.anchors, seed=config.seed, shift=shift)
            heldout = HeldOut(self._heldout, config)
            if isinstance(worker, TargetWorker):
                with self._metered(worker, out, rank, first):
                    worker.run(batches, heldout, first)
                return

            def save(step: int) -> None:
                about = {"config": asdict(config), "target": self._target, "micro_batches": shift + step * a_step}
                saving.save(step, about, lambda folder: write_description(worker.draft, folder))

            def sound(step: int, figures: dict[str, Any]) -> None:
                saving.check()
                report(step, figures | worker.meter.memory())

            try:
                with self._metered(worker, out, rank, first):
                    if rank == lead:
                        with Saving(checkpoints, worker.state, self.progress) as saving:
                            begun = time.monotonic()
                            worker.run(batches, heldout, first, sound, save, stopping)
                    else:
                        worker.run(batches, heldout, first, _nothing, _nothing, stopping)
            except NotFinite:
                worker.meet()
                raise
            worker.meet()
            if last.get("stop"):
                crew.group.abort()

        try:
            crew.run(run, saved=saved)
        finally:
            if log:
                log.close()
        if stopping():
            raise KeyboardInterrupt
        if not leads:
            return {}
        newest = checkpoints.latest(self.progress)
        if newest is None or newest.step != self.config.steps:
            raise CheckpointError("the last checkpoint can not be read back", where=str(checkpoints.folder))
        with whole_folder(out / "draft") as folder:
            write_layout(load_draft(newest.folder).to(dtype_of(self.config)), folder)
        return {
            "resumed_at": first,
            "warm_s": {name: round(seconds, 2) for name, seconds in crew.warm_seconds.items()},
            **{k: last[k] for k in ("step", *SHOWN, "heldout") if k in last},
            "cache": cache_counts().to_json(),
        }

    @contextmanager
    def _metered(self, worker: Worker, out: Path, rank: int, first: int) -> Iterator[None]:
        """Have a worker note how busy it is, a row a step, in a file of its own: nothing crosses ranks."""
        topology = self.config.topology
        role = "target" if rank in topology.target_ranks else "drafter"
        role = "target and drafter" if topology.colocated else role
        with closing(MetricLog(log_of(out / USAGE, rank), first)) as log, worker.meter.telling(role, log.write):
            yield

    def _refuse_other_configuration(self, saved: Checkpoint) -> None:
        if saved.state.get("target", self._target) != self._target:
            raise CheckpointError(
                "was made with another target",
                where=str(saved.folder),
                cure="train into another folder, or name that one",
            )
        mine, theirs = json.loads(json.dumps(asdict(self.config))), saved.state["config"]
        differing = sorted(k for k in (mine.keys() | theirs.keys()) - _FREE if mine.get(k) != theirs.get(k))
        if differing:
            raise CheckpointError(
                f"was made with another configuration: {', '.join(differing)}",
                where=str(saved.folder),
                cure="train into another folder, or set those back",
            )


def _nothing(*_: object) -> None:
    """What a drafter that is not the first reports and saves."""


def _in_words(measured: Mapping[str, Any]) -> str:
    accuracy = " ".join(f"{share:.2f}" for share in measured["accuracy"])
    return f"loss {measured['loss']:.4g}, acceptance length {measured['accept_len']:.3g}, accuracy {accuracy}"


def _let_compile(worker: str, graph: Graph) -> None:
    pass


def _refuse_to_compile(worker: str, graph: Graph) -> None:
    if graph.compiled:
        raise CompilationError(
            f"'{graph.name}' for {graph.inputs} (worker {worker}) was not in the compile cache",
            cure="run again: pre-warm compiles what is missing",
        )


def refuse_mask_in(packed: Mapping[int, Rows], mask: int, kind: str = "row") -> None:
    """Raise UsageError if the text holds the mask token: the drafter could not tell its blanks from words."""
    for bucket, rows in packed.items():
        for first in range(0, len(rows), _AT_ONCE):
            places = (rows.tokens[first : first + _AT_ONCE] == mask).nonzero()
            if len(places):
                raise UsageError(
                    f"the mask token {mask} is used by the data (bucket {bucket}, {kind} {first + int(places[0, 0])})",
                    where="train.draft.mask_token_id",
                    cure="name a vocabulary row that no text uses",
                )


_FREE = {"launcher", "patience_s", "prefetch", "topology", "accumulate", "evaluate_every", "evaluate_batches", "start"}
"""What may differ from a checkpoint's configuration: who does the work, how much of it makes a step, and what changes
no weight. `launcher` is in older checkpoints alone: it is the step's now. `start` is a path, another on each host, and
what it named is in the checkpoint's weights."""

_AT_ONCE = 4096
"""Rows that are looked at together: a set may be larger than memory."""

SHOWN = ("loss", "accuracy", "accept_len", "tokens_per_s", "lr", "gpu_gb")
"""The figures a person watches; the last is of the first drafter's GPU, where it has one."""

_NOT_LOGGED = {"stop", "skipped", "gpu_gb"}
"""What is no figure of the training; each worker's GPU is in a log of its own."""
