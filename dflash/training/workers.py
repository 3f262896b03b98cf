"""The two roles of a training. The code knows its rank, its device and a communicator; not whether it is a thread
or a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dflash.errors import DFlashError, UsageError
from dflash.model.draft import DFlashDraftModel
from dflash.model.loss import slot_decay
from dflash.model.target import Capture
from dflash.training.batches import Batches, MicroBatch
from dflash.training.checkpoints import Checkpoint, optimizer_tensors, restore_optimizer
from dflash.training.communicator import Communicator
from dflash.training.config import TrainConfig
from dflash.training.metrics import Sums
from dflash.training.optimizer import adamw, rate, set_rate
from dflash.training.regions import Drafting, Regions, labels
from dflash.training.schedule import work_of


def device_of(rank: int, config: TrainConfig) -> torch.device:
    """The device of a worker: one GPU each, or one of as many virtual devices that are all the CPU.

    Raises:
        UsageError: there are fewer GPUs than workers.
    """
    if config.device == "cpu":
        return torch.device("cpu")
    found, wanted = torch.cuda.device_count(), config.topology.size
    if found < wanted:
        raise UsageError(
            f"{wanted} workers need {wanted} GPUs, and torch {torch.__version__} sees {found}",
            where="train.topology",
            cure="choose a smaller split with --set train.topology.targets=… and .drafters=…",
        )
    torch.cuda.set_device(rank)  # of this thread
    return torch.device("cuda", rank)


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
    ) -> None:
        self._comm, self._config = comm, config
        self._device = device_of(comm.rank, config)
        self._capture = Capture(target.to(self._device), layer_ids, regions.target_layer)

    def warm(self, buckets: Iterable[int]) -> None:
        """Run every graph of this role once, on every bucket."""
        for length in buckets:
            self._features(sample_batch(self._config, length))

    def run(self, batches: Batches, first: int) -> None:
        """Make the features of all steps from `first` on, as far ahead as the prefetch depth lets."""
        steps = range(first, self._config.steps)
        for _, assignment in work_of(self._comm.rank, self._config.topology, steps):
            self._comm.send(self._features(batches[assignment.index]), assignment.drafter)

    def _features(self, batch: MicroBatch) -> Tensor:
        here = batch.to(self._device)
        return self._capture.features(here.tokens, here.positions, here.documents)


class DrafterWorker:
    """Trains one replica of the drafter. Replicas start equal, add up their gradients, and so stay equal."""

    def __init__(
        self,
        comm: Communicator,
        config: TrainConfig,
        target: PreTrainedModel,
        draft: DFlashDraftModel,
        regions: Regions,
    ) -> None:
        self._comm, self._config = comm, config
        self._device = device_of(comm.rank, config)
        self.draft = draft.to(self._device)
        # Detached: a parameter and a tensor are two graphs, and only what moves to another device becomes a tensor.
        embedding = target.get_input_embeddings().weight.detach().to(self._device)
        head = target.get_output_embeddings().weight.detach().to(self._device)
        self._drafting = Drafting(draft, embedding, head, regions)
        self._decay = slot_decay(config.draft.block, config.decay).to(self._device)
        self._sums = Sums(config.draft.block)
        self._width = len(draft.target_layer_ids) * draft.config.hidden_size
        self._dtype = embedding.dtype
        parameters = list(draft.parameters())
        self.optimizer = adamw(parameters, config.optimizer)
        # All gradients are views of one vector: backward fills it, one all-reduce adds it up, one norm clips it.
        self._gradients = torch.zeros(sum(p.numel() for p in parameters), dtype=self._dtype, device=self._device)
        for parameter, view in zip(parameters, self._gradients.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = view.view_as(parameter)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over a checkpoint's weights and optimizer state."""
        self.draft.load_state_dict(checkpoint.tensors("model"))
        restore_optimizer(self.optimizer, self.draft.named_parameters(), checkpoint.tensors("optimizer"))

    def optimizer_state(self) -> dict[str, Tensor]:
        """The optimizer's state as named tensors."""
        names = {parameter: name for name, parameter in self.draft.named_parameters()}
        return optimizer_tensors(self.optimizer, names)

    def warm(self, buckets: Iterable[int]) -> None:
        """Run every graph of this role once, forward and backward, on every bucket; leaves no gradient behind."""
        for length in buckets:
            batch = sample_batch(self._config, length).to(self._device)
            shape = (self._config.rows, length, self._width)
            features = torch.zeros(shape, dtype=self._dtype, device=self._device)
            self._drafting(batch, features, labels(batch, self._decay)).loss.backward()
        self._gradients.zero_()

    def run(
        self,
        batches: Batches,
        first: int,
        finished: Callable[[int, dict[str, Any]], None],
        stopping: Callable[[], bool],
    ) -> None:
        """Train from step `first` on, calling `finished(steps done, figures)` after each step.

        `stopping` is asked on every rank; as soon as one rank says yes, all end after the same step.
        """
        topology = self._config.topology
        for step, assignment in work_of(self._comm.rank, topology, range(first, self._config.steps)):
            batch = batches[assignment.index].to(self._device)
            wanted = labels(batch, self._decay)
            weight = wanted.weights.sum().double()
            self._comm.all_reduce(weight, topology.drafter_ranks)
            shape = (*batch.tokens.shape, self._width)
            features = self._comm.receive(assignment.target, shape, self._dtype).to(self._device)
            outcome = self._drafting(batch, features, wanted)
            (outcome.loss / weight.clamp(min=1e-12).to(outcome.loss.dtype)).backward()
            sums = self._sums.of(outcome, wanted, batch.tokens.numel(), stop=stopping())
            self._comm.all_reduce(sums, topology.drafter_ranks)
            figures = self._sums.read(sums, float(weight))
            figures |= self._update(step, batch)
            finished(step + 1, figures)
            if figures["stop"]:
                return

    def _update(self, step: int, batch: MicroBatch) -> dict[str, float]:
        self._comm.all_reduce(self._gradients, self._config.topology.drafter_ranks)
        norm = float(self._gradients.norm())
        if not norm < float("inf"):
            raise DFlashError(
                f"the gradient is not finite at step {step + 1} on worker {self._comm.rank}, micro-batch {batch.index}",
                cure="lower train.optimizer.lr, or look at the rows of that micro-batch",
            )
        limit = self._config.optimizer.clip
        if norm > limit:
            self._gradients.mul_(limit / norm)
        lr = rate(step, self._config.steps, self._config.optimizer)
        set_rate([self.optimizer], lr)
        self.optimizer.step()
        self._gradients.zero_()
        return {"grad_norm": norm, "lr": lr}
