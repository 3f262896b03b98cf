"""The two roles of a training. The code knows its rank, its device and a communicator; not whether it is a thread
or a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dflash.errors import DFlashError, UsageError
from dflash.model.draft import DFlashDraftModel
from dflash.model.loss import slot_decay
from dflash.model.target import Capture, Ends, run_layer
from dflash.model.weights import FlatWeights
from dflash.training.batches import Batches, MicroBatch, sent
from dflash.training.checkpoints import Checkpoint
from dflash.training.communicator import Communicator
from dflash.training.config import TrainConfig
from dflash.training.drafts import handed_over
from dflash.training.heldout import HeldOut
from dflash.training.metrics import Reading, Sums
from dflash.training.muon import Muon
from dflash.training.optimizer import AdamW
from dflash.training.regions import Drafting, Labels, Regions, labels
from dflash.training.schedule import Assignment, work_of


def dtype_of(config: TrainConfig) -> torch.dtype:
    """The dtype of weights and states, of target and drafter."""
    dtype: torch.dtype = getattr(torch, config.dtype)
    return dtype


def device_of(rank: int, config: TrainConfig, numbers: Mapping[int, int]) -> torch.device:
    """The device of a worker: the GPU of its number on its host (`Group.numbers`), or one of as many virtual devices
    that are all the CPU.

    Raises:
        UsageError: there are fewer GPUs here than workers.
    """
    if config.device == "cpu":
        return torch.device("cpu")
    found, wanted = torch.cuda.device_count(), max(numbers.values()) + 1
    if found < wanted:
        raise UsageError(
            f"{wanted} workers need {wanted} GPUs, and torch {torch.__version__} sees {found}",
            where="train.topology",
            cure="run it where they are, or choose a smaller split with --set train.topology.targets=… and .drafters=…",
        )
    torch.cuda.set_device(numbers[rank])  # of this thread
    return torch.device("cuda", numbers[rank])


def sample_batch(config: TrainConfig, length: int) -> MicroBatch:
    """A micro-batch of the shapes that training has in the bucket `length`, with made-up contents."""
    shape = (config.rows, length)
    return MicroBatch(
        index=-1,
        tokens=torch.zeros(shape, dtype=torch.long),
        documents=torch.zeros(shape, dtype=torch.long),
        positions=torch.arange(length).expand(shape).contiguous(),
        trainable=torch.ones(shape, dtype=torch.bool),
        anchors=torch.arange(config.anchors).clamp(max=length - 2).expand(config.rows, -1).contiguous(),
    )


class TargetWorker:
    """Runs the target on its share of the micro-batches and hands the captured features to their drafters."""

    def __init__(
        self,
        comm: Communicator,
        config: TrainConfig,
        target: PreTrainedModel,
        layer_ids: list[int],
        regions: Regions,
        device: torch.device,
    ) -> None:
        self._comm, self._config, self._device = comm, config, device
        # Torch's collectives are in the layers of a target that is spread over workers: those stay eager.
        layer = regions.target_layer if config.topology.target_gpus == 1 else run_layer
        self._capture = Capture(target, layer_ids, layer, last=config.kl > 0).to(self._device)

    def warm(self, buckets: Iterable[int]) -> None:
        """Run every graph of this role once, on every bucket."""
        for length in buckets:
            self.features(sample_batch(self._config, length))

    def run(self, batches: Batches, heldout: HeldOut, first: int) -> None:
        """Make the features of all steps from `first` on, as far ahead as the prefetch depth lets."""
        config = self._config
        for step in range(first, config.steps):
            for work in work_of(self._comm.rank, step, config.topology, config.accumulate):
                self._hand_on(batches[work.index], work)
            if heldout.due(step + 1):
                for work, batch in heldout.work_of(self._comm.rank):
                    self._hand_on(batch, work)
        self._comm.finish()

    def _hand_on(self, batch: MicroBatch, work: Assignment) -> None:
        if self._config.topology.target_gpus > 1:
            self._comm.asks("the other workers of its target")
        features = self.features(batch)
        if work.target == self._comm.rank:  # every worker of a spread target has them
            self._comm.send(features, work.drafter)

    def features(self, batch: MicroBatch) -> Tensor:
        """What the target has captured of `batch` (R, S, K * H), on this worker's device."""
        here = batch.to(self._device)
        return self._capture.features(here.tokens, here.positions, here.documents)


class NotFinite(DFlashError):
    """A loss or gradient is not a number; raised by all drafters at the same step."""


class Step:
    """A finished step whose figures may still be on their way."""

    def __init__(self, number: int, figures: Tensor, norm: Tensor, lr: float) -> None:
        """`number` counts from 1; `figures` are summed over ranks, `norm` is the gradient's."""
        self.number, self._lr = number, lr
        self._reading = Reading(torch.cat((figures, norm.double()[None])))

    def read(self, sums: Sums) -> dict[str, Any]:
        """Its figures, once they are there."""
        read = self._reading.wait()
        return {**sums.read(read[:-1]), "grad_norm": float(read[-1]), "lr": self._lr}


class DrafterWorker:
    """Trains one replica of the drafter. Replicas start equal, add up their gradients, and so stay equal."""

    def __init__(
        self,
        comm: Communicator,
        config: TrainConfig,
        ends: Ends,
        draft: DFlashDraftModel,
        regions: Regions,
        device: torch.device,
        target: TargetWorker | None = None,
    ) -> None:
        """`ends` are the target's, and with `draft` may be anywhere and of any dtype. A colocated drafter has the
        `target` with it, on its own device; any other gets its features from a target worker."""
        self._comm, self._config, self._target = comm, config, target
        self._device, self._dtype = device, dtype_of(config)
        self.draft = draft.to(self._device, self._dtype)
        ends = ends.to(self._device, self._dtype)
        # Micro-batches of one step add up in float32.
        self._flat = FlatWeights(draft, torch.float32 if config.accumulate > 1 else None)
        self._drafting = Drafting(draft, self._flat.weights, *ends, regions, config.dpace, config.kl)
        self._decay = slot_decay(config.draft.block, config.decay) if config.dpace is None else None
        self._group = config.topology.drafter_ranks
        self._place = self._group.index(comm.rank)
        self._sums = Sums(config.draft.block, len(self._group))
        self._width = handed_over(config, draft.config)
        optimizer = Muon if config.optimizer.name == "muon" else AdamW
        self._optimizer = optimizer(self._flat, config.optimizer, regions.update, steps=config.steps)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over a checkpoint's weights and optimizer state."""
        self.draft.load_state_dict(checkpoint.tensors("model"))
        self._optimizer.restore(checkpoint.tensors("optimizer"))

    def state(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint holds: weights, in the published layout's names, and optimizer state. Views: the next step
        changes them."""
        return {"model": self.draft.state_dict(), "optimizer": self._optimizer.tensors()}

    def warm(self, buckets: Iterable[int]) -> None:
        """Run every graph of this role once, forward and backward, on every bucket; those of its own target too."""
        for length in buckets:
            if self._target:
                self._target.warm([length])
            batch = sample_batch(self._config, length)
            shape = (self._config.rows, length, self._width)
            features = torch.zeros(shape, dtype=self._dtype, device=self._device)
            wanted = self._labels(batch).to(self._device)
            self._drafting(batch.to(self._device), features, wanted).loss.backward()
        self._optimizer.warm()

    def run(
        self,
        batches: Batches,
        heldout: HeldOut,
        first: int,
        report: Callable[[int, dict[str, Any]], None],
        save: Callable[[int], None],
        stopping: Callable[[], bool],
    ) -> None:
        """Train from step `first` on. `report(steps done, figures)` is told of each step, one step late, so that the
        device is never waited for; `save(steps done)` is called where a checkpoint is due, everything reported. Figures
        of the held-out rows, where they are due, are "heldout" in those of their step.

        `stopping` is asked on every rank; one step after any rank says yes, all end.

        Raises:
            NotFinite: a loss or gradient is not finite, and the configuration says to stop then.
        """
        config = self._config
        before: Step | None = None
        for step in range(first, config.steps):
            now = self._step(step, batches, stop=stopping())
            end = before is not None and self._report(before, batches, report)
            before = now
            measured = self._evaluate(heldout) if heldout.due(now.number) else {}
            due = end or now.number % config.checkpoint_every == 0 or now.number == config.steps
            if due or measured:
                end = self._report(now, batches, report, measured) or end
                before = None
                if due or end:
                    save(now.number)
            if end:
                break
        self._comm.finish()

    def meet(self) -> None:
        """Wait for the other drafters: a process that ended before the one that writes would end that, too."""
        self._comm.meet(self._group)

    def _labels(self, batch: MicroBatch) -> Labels:
        return labels(batch, self._decay, self._config.draft.block)

    def _step(self, step: int, batches: Batches, *, stop: bool) -> Step:
        config = self._config
        mine = work_of(self._comm.rank, step, config.topology, config.accumulate)
        work = [(each, batches[each.index]) for each in mine]
        asked = [self._labels(batch) for _, batch in work]
        weight = sent(torch.stack([each.share for each in asked]).sum(), self._device)
        self._comm.all_reduce(weight, self._group)
        scale = 1 / weight.clamp(min=1e-12).float()
        self._flat.begin_step()
        figures = torch.zeros(self._sums.size, dtype=torch.double, device=self._device)
        for (assignment, batch), wanted in zip(work, asked, strict=True):
            here, wanted = batch.to(self._device), wanted.to(self._device).scaled(scale)
            outcome = self._drafting(here, self._features(assignment, here), wanted)
            outcome.loss.backward()
            figures += self._sums.of(outcome, wanted, batch.tokens.numel(), drafter=self._place, stop=stop)
        self._comm.all_reduce(figures, self._group)
        self._comm.all_reduce(self._flat.gradients, self._group)
        norm = torch.linalg.vector_norm(self._flat.gradients, dtype=torch.float32)
        return Step(step + 1, figures, norm, self._optimizer.step(step, norm))

    def _features(self, assignment: Assignment, batch: MicroBatch) -> Tensor:
        if self._target:
            return self._target.features(batch)
        shape = (*batch.tokens.shape, self._width)
        return self._comm.receive(assignment.target, shape, self._dtype).to(self._device)

    def _evaluate(self, heldout: HeldOut) -> dict[str, Any]:
        """The drafter's figures on the held-out rows, the same on each rank. Autograd stays on, though nothing goes
        backward: a forward pass without it would be a graph of its own."""
        total = torch.zeros(self._sums.size + 1, dtype=torch.double, device=self._device)
        for assignment, batch in heldout.work_of(self._comm.rank):
            here, wanted = batch.to(self._device), self._labels(batch).to(self._device)
            outcome = self._drafting(here, self._features(assignment, here), wanted)
            total[:-1] += self._sums.of(outcome, wanted, batch.tokens.numel(), drafter=self._place, stop=False)
            total[-1] += sent(wanted.share, self._device)
            del outcome  # and what a backward pass would need, before the next is made
        self._comm.all_reduce(total, self._group)
        read = total.cpu()
        figures = self._sums.read(read[:-1])
        figures["loss"] /= max(float(read[-1]), 1e-12)
        return {"heldout": {name: figures[name] for name in ("loss", "accuracy", "accept_len")}}

    def _report(
        self,
        step: Step,
        batches: Batches,
        report: Callable[[int, dict[str, Any]], None],
        measured: Mapping[str, Any] | None = None,
    ) -> bool:
        """Report `step`, and what was `measured` after it; whether somebody wishes to stop."""
        figures = step.read(self._sums) | dict(measured or {})
        places, config = figures.pop("not_finite"), self._config
        figures["skipped"] = bool(places) or not figures["grad_norm"] < float("inf")
        if figures["skipped"] and config.not_finite == "stop":
            raise self._fault(step.number, places, batches)
        report(step.number, figures)
        return bool(figures["stop"])

    def _fault(self, number: int, places: list[int], batches: Batches) -> NotFinite:
        config = self._config
        drafters = [self._group[place] for place in places] or list(self._group)
        rows = [
            f"worker {rank}: {batches.describe(each.index)}"
            for rank in drafters
            for each in work_of(rank, number - 1, config.topology, config.accumulate)
        ]
        return NotFinite(
            f"the {'loss' if places else 'gradient'} is not finite at step {number} ({'; '.join(rows)})",
            cure="look at those rows, lower train.optimizer.lr, or pass such steps over with train.not_finite=skip",
        )
