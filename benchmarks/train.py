"""`./inv bench train`: the draft step on GPUs, part by part, beside what the machine can do.

The drafter of an 8B target (hidden 4096, intermediate 12288, 32/8 heads of 128, 5 layers, block 16, 5 captured layers,
vocabulary 151936), rows of 3072 tokens, 512 anchors a row, bfloat16 with float32 masters. Text and hidden states are
random, as in the measurements that this is compared with.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PretrainedConfig, Qwen3Config

from dflash.compilation.gate import CompileGate
from dflash.errors import UsageError
from dflash.model.loss import slot_decay
from dflash.model.weights import FlatWeights
from dflash.progress import Silent
from dflash.training.batches import MicroBatch
from dflash.training.communicator import ThreadGroup
from dflash.training.config import DraftConfig, OptimizerConfig, Topology, TrainConfig
from dflash.training.crew import Crew, Worker
from dflash.training.drafts import draft_config, handed_over
from dflash.training.heldout import HeldOut
from dflash.training.measuring import random_batches
from dflash.training.optimizer import AdamW
from dflash.training.regions import Drafting, Regions, labels
from dflash.training.sources import Random
from dflash.training.workers import TargetWorker

LENGTH, BUCKETS = 3072, (1024, 2048, 3072)
VOCABULARY = 151_936
STEPS, WARM = 15, 3
CONFIG = TrainConfig(
    draft=DraftConfig(layers=5, features=5, block=16, mask_token_id=151_669),
    topology=Topology(1, 1),
    optimizer=OptimizerConfig(lr=1e-5),
    rows=2,
    anchors=512,
    dtype="bfloat16",
    device="cuda",
)


def target_8b() -> PretrainedConfig:
    """The shape of an 8B target, as transformers says it."""
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
    )


SHAPE = draft_config(target_8b(), CONFIG.draft)


def compiled(config: TrainConfig = CONFIG) -> tuple[CompileGate, Regions]:
    """A gate and the drafter's regions behind it."""
    gate = CompileGate()
    return gate, Regions(gate, SHAPE, taught=config.kl > 0)


def measure() -> dict[str, float]:
    """The figures, by name: `_ms` milliseconds, `_tflops` 10^12 floating-point operations a second, `_gib` GiB.

    `ceiling` is a product of two matrices 8192 x 8192, `sustained` the same for seconds on end, as training runs: a GPU
    that comes to its power limit then lowers its clock. `step1` and `step2` are whole steps (forward, loss, backward,
    clipping, AdamW) of one and two rows, `share` and `of_sustained` their part of the two; `mixed_over_fixed` what
    steps of mixed row lengths take over the same steps sorted by length. With two GPUs: `data_parallel`, throughput of
    two drafters over that of one, and `busy`, the part of the time that the slower of target and drafter works, 1 + 1.

    Raises:
        UsageError: there is no GPU.
    """
    if not torch.cuda.is_available():
        raise UsageError("bench train measures GPUs, and torch sees none", cure="run it on a GPU host")
    figures = ceilings()
    for rows in (1, 2):
        step = DraftStep(torch.device("cuda", 0), replace(CONFIG, rows=rows), *compiled())
        figures |= {f"step{rows}_{name}": value for name, value in step.measure(figures).items()}
        if rows == 2:
            figures |= lengths(step)
        del step
        torch.cuda.empty_cache()
    if torch.cuda.device_count() >= 2:
        figures |= data_parallel()
        torch.cuda.empty_cache()
        figures |= split(figures["step2_ms"])
    return figures


def timed(work: Callable[[], object], repeats: int) -> float:
    """Milliseconds of the GPU for each call."""
    for _ in range(WARM):
        work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / repeats


def ceilings() -> dict[str, float]:
    """What this GPU does at its best: a large product, and a copy."""
    one, other = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product, sustained = (timed(lambda: one @ other.T, times) for times in (30, 3000))
    source = torch.empty(2**31, device="cuda", dtype=torch.uint8)
    copy = timed(source.clone, 10)
    return {
        "ceiling_tflops": round(2 * 8192**3 / product / 1e9, 1),
        "sustained_tflops": round(2 * 8192**3 / sustained / 1e9, 1),
        "copy_tb_per_s": round(2 * len(source) / copy / 1e9, 2),
    }


def operations(rows: int) -> float:
    """Floating-point operations of the model's step in its matrix products and attention: 73.0e12 a row of 3072 tokens
    with 512 anchors (47.4 layers, 0.8 keys and values of the context, 1.0 fusion, 3.4 attention, 20.4 LM head)."""
    return 73.0e12 * rows


class DraftStep:
    """One drafter on one GPU with made-up features: all of a training step but the target."""

    def __init__(self, device: torch.device, config: TrainConfig, gate: CompileGate, regions: Regions) -> None:
        self.device, self.config, self.gate = device, config, gate
        self.reduce: Callable[[Tensor], None] = lambda gradients: None
        torch.cuda.set_device(device)
        models = Random(target_8b(), CONFIG.draft.features)
        draft = models.draft(SHAPE, device).bfloat16()
        self.flat = FlatWeights(draft)
        ends = models.ends(device, torch.bfloat16)
        self.drafting = Drafting(draft, self.flat.weights, *ends, regions, config.dpace, config.kl)
        self.optimizer = AdamW(self.flat, config.optimizer, regions.update, steps=10_000)
        self.width = handed_over(config, SHAPE)
        self.decay = slot_decay(config.draft.block, config.decay) if config.dpace is None else None
        self._made: dict[int, tuple[MicroBatch, Tensor]] = {}
        self._taken = 0

    def batch(self, length: int) -> tuple[MicroBatch, Tensor]:
        """Rows of random text, one document each, and random features."""
        if length not in self._made:
            config = self.config
            made = random_batches(config, length, config.rows, VOCABULARY)[0]
            features = torch.randn(config.rows, length, self.width, device=self.device, dtype=torch.bfloat16)
            self._made[length] = made, features
        return self._made[length]

    def forward(self, length: int) -> Tensor:
        """The loss, with its graph."""
        self.flat.begin_step()
        batch, features = self.batch(length)
        wanted = labels(batch, self.decay, self.config.draft.block)
        scale = 1 / wanted.share.float()
        return self.drafting(batch.to(self.device), features, wanted.to(self.device).scaled(scale)).loss

    def update(self) -> None:
        """Add up gradients where there are several drafters, clip, and take a step."""
        self.reduce(self.flat.gradients)
        norm = torch.linalg.vector_norm(self.flat.gradients, dtype=torch.float32)
        self.optimizer.step(self._taken, norm)
        self._taken += 1

    def __call__(self, length: int = LENGTH) -> None:
        """A whole step."""
        self.forward(length).backward()
        self.update()

    def warm(self, *lengths: int) -> None:
        """Compile everything, in a turn."""
        with self.gate.turn():
            for length in lengths:
                self(length)

    def measure(self, ceilings: Mapping[str, float]) -> dict[str, float]:
        """Milliseconds by part, medians, and of whole steps, their mean; beside what the GPU can do."""
        begun = time.monotonic()
        self.warm(LENGTH)
        torch.cuda.synchronize()
        first = time.monotonic() - begun
        with self.gate.sealed():
            whole = timed(self, STEPS)
            torch.cuda.reset_peak_memory_stats()
            marks = [[torch.cuda.Event(enable_timing=True) for _ in range(4)] for _ in range(STEPS)]
            for mark in marks:
                mark[0].record()
                loss = self.forward(LENGTH)
                mark[1].record()
                loss.backward()
                mark[2].record()
                self.update()
                mark[3].record()
            torch.cuda.synchronize()
        parts = [statistics.median(m[i].elapsed_time(m[i + 1]) for m in marks) for i in range(3)]
        speed = operations(self.config.rows) / whole / 1e9
        return {
            "ms": round(whole, 1),
            "ms_a_row": round(whole / self.config.rows, 1),
            **{
                f"{name}_ms": round(part, 1)
                for name, part in zip(("forward", "backward", "update"), parts, strict=True)
            },
            "tflops": round(speed, 1),
            "share": round(speed / ceilings["ceiling_tflops"], 3),
            "of_sustained": round(speed / ceilings["sustained_tflops"], 3),
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
            "first_s": round(first, 1),
        }


def lengths(step: DraftStep) -> dict[str, float]:
    """Row lengths in turn against each by itself; the gate is sealed, so that nothing can be compiled."""
    step.warm(*BUCKETS)
    with step.gate.sealed():
        alone = [timed(lambda length=length: step(length), STEPS) for length in BUCKETS]
        turn = iter(range(10**6))
        mixed = timed(lambda: step(BUCKETS[next(turn) % len(BUCKETS)]), STEPS)
    fixed = statistics.mean(alone)
    return {
        "fixed_lengths_ms": round(fixed, 1),
        "mixed_lengths_ms": round(mixed, 1),
        "mixed_over_fixed": round(mixed / fixed, 3),
    }


def data_parallel() -> dict[str, float]:
    """Two drafters on two GPUs, as threads, against one."""
    group = ThreadGroup(2, prefetch=1)
    gate, regions = compiled()
    steps = [DraftStep(torch.device("cuda", rank), CONFIG, gate, regions) for rank in range(2)]
    for step in steps:
        step.warm(LENGTH)
    took = [0.0, 0.0]

    def work(rank: int) -> None:
        torch.cuda.set_device(rank)
        end = group.communicator(rank)
        steps[rank].reduce = lambda gradients: end.all_reduce(gradients, (0, 1))
        took[rank] = timed(steps[rank], STEPS)

    with gate.sealed():
        torch.cuda.set_device(0)
        one = timed(steps[0], STEPS)
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    two = max(took)
    return {
        "one_drafter_ms": round(one, 1),
        "two_drafters_ms": round(two, 1),
        "data_parallel": round(2 * one / two, 3),
    }


def split(alone_ms: float) -> dict[str, float]:
    """A target and a drafter, each on a GPU of its own, by the training's own workers."""
    steps = 24
    config = replace(CONFIG, steps=steps, checkpoint_every=steps)
    crew = Crew(config, Random(target_8b(), CONFIG.draft.features), [LENGTH], Silent())
    moments: list[float] = []
    target_ms: list[float] = []

    def body(worker: Worker, rank: int) -> None:
        batches, none = random_batches(config, LENGTH, 16, VOCABULARY), HeldOut({}, config)
        if isinstance(worker, TargetWorker):
            target_ms.append(timed(lambda: worker.features(batches[0]), 5))
            worker.run(batches, none, 0)
        else:
            worker.run(batches, none, 0, lambda *_: moments.append(time.monotonic()), lambda _: None, lambda: False)

    crew.run(body)
    after = moments[len(moments) // 4 : -1]  # the first steps fill the pipeline, the last is waited for
    step_ms = (after[-1] - after[0]) / (len(after) - 1) * 1e3
    slower = max(alone_ms, target_ms[0])
    return {
        "target_ms": round(target_ms[0], 1),
        "split_step_ms": round(step_ms, 1),
        "busy": round(slower / step_ms, 3),
    }
