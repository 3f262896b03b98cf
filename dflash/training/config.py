"""What the steps of a training are declared with: plain dataclasses that check themselves.

Nothing is imported but the standard library, so that planning a run costs no torch import, and the room needs no
schema library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GAMMAS = {16: 7.0, 10: 5.0, 8: 4.0}
"""The paper's loss decay by block size (arXiv 2602.06036, appendix A.1)."""


ROLES = ("target", "drafter")
"""What a worker does."""


def check_device(device: str) -> None:
    """Refuse what is not a kind of device. `cuda` is one GPU a worker, `cpu` any number of virtual devices."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device is cpu or cuda, not '{device}'")


def check_least(config: object, least: int, *names: str) -> None:
    """Refuse the first of these fields that is below `least`, by its name."""
    for name in names:
        if getattr(config, name) < least:
            raise ValueError(f"{name} must be at least {least}, not {getattr(config, name)}")


@dataclass(frozen=True)
class TargetConfig:
    """The target: a model `folder` that is there already, or the shape and training of a small byte-level one.

    `window` is in tokens, `rows` windows make one step.
    """

    folder: str | None = None
    layers: int = 6
    hidden: int = 128
    intermediate: int = 384
    heads: int = 4
    kv_heads: int = 2
    max_positions: int = 1024
    corpus_bytes: int = 8_000_000
    window: int = 224
    rows: int = 10
    steps: int = 300
    lr: float = 1e-2
    warmup: float = 0.05
    seed: int = 0
    checkpoint_every: int = 100
    threads: int = 0

    def __post_init__(self) -> None:
        if self.hidden % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"hidden ({self.hidden}) must divide by heads ({self.heads}), and heads by kv_heads ({self.kv_heads})"
            )
        check_least(self, 1, "steps", "rows", "checkpoint_every")
        check_least(self, 16, "window")


@dataclass(frozen=True)
class OptimizerConfig:
    """An optimizer with a linear warm-up and then a way down to `final` of the peak, by `schedule`: a "cosine" (arXiv
    2602.06036, appendix A.1), "linear", or "wsd", the peak until the last share `cooldown` of the steps and a line from
    there (arXiv 2405.18392). By `name` it is "adamw", or "muon" for the matrices, with AdamW at `lr / muon_ratio` for
    the norms (speculators#979: 10; the `lr` of its defaults is 1e-3)."""

    name: str = "adamw"
    lr: float = 6e-4
    muon_ratio: float = 10.0
    schedule: str = "cosine"
    cooldown: float = 0.2
    warmup: float = 0.04
    final: float = 0.0
    clip: float = 1.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"lr must be above 0, not {self.lr}")
        if self.name not in ("adamw", "muon"):
            raise ValueError(f"name is adamw or muon, not '{self.name}'")
        if not self.muon_ratio > 0:
            raise ValueError(f"muon_ratio must be above 0, not {self.muon_ratio}")
        if self.schedule not in ("cosine", "linear", "wsd"):
            raise ValueError(f"schedule is cosine, linear or wsd, not '{self.schedule}'")
        if self.schedule == "wsd" and not (self.cooldown > 0 and self.cooldown + self.warmup <= 1):
            raise ValueError(f"cooldown is a share of the steps after the warm-up, not {self.cooldown}")
        if not 0 <= self.final <= 1:
            raise ValueError(f"final is a share of the peak in [0, 1], not {self.final}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a share of the steps in [0, 1), not {self.warmup}")
        if not self.clip > 0:
            raise ValueError(f"clip must be above 0, not {self.clip}")


@dataclass(frozen=True)
class DraftConfig:
    """The drafter's shape. What is not named here (hidden size, heads, RoPE) is the target's, and so is the width of
    its MLP, `intermediate`, if it is left out.

    The first `sliding` layers see only the `window` positions that end with a token's own, so are causal in the block.
    Published drafters that have such layers have 4 of them, or all 5, and a window of 2048.
    """

    layers: int = 5
    features: int = 5
    block: int = 16
    intermediate: int | None = None
    mask_token_id: int | None = None
    sliding: int = 0
    window: int = 2048

    def __post_init__(self) -> None:
        check_least(self, 1, "layers", "features", *(() if self.intermediate is None else ("intermediate",)))
        check_least(self, 2, "block")
        if not 0 <= self.sliding <= self.layers:
            raise ValueError(f"sliding is how many of the {self.layers} layers slide, not {self.sliding}")
        if self.sliding and self.window < self.block:
            raise ValueError(f"window ({self.window}) must be at least block ({self.block})")


@dataclass(frozen=True)
class Topology:
    """Who does what: workers 0 .. targets-1 run the target, the next `drafters` workers train the drafter. With no
    `targets` both are colocated: each drafter runs the target itself, on its own device, on its own micro-batches.
    A target that is larger than a GPU is spread over `target_gpus` workers, of which the first hands on features."""

    targets: int = 5
    drafters: int = 3
    target_gpus: int = 1

    def __post_init__(self) -> None:
        if self.target_gpus < 1 or (self.target_gpus > 1 and self.targets < 1):
            raise ValueError("target_gpus must be at least 1, and 1 where drafters run the target themselves")
        check_least(self, 1, "drafters")
        if self.targets < 0:
            raise ValueError("targets must be at least 1, or 0: then drafters run the target themselves")

    @property
    def colocated(self) -> bool:
        """Whether each drafter runs the target itself."""
        return self.targets == 0

    @property
    def size(self) -> int:
        """The number of workers."""
        return self.targets * self.target_gpus + self.drafters

    @property
    def target_ranks(self) -> range:
        """The targets' ranks."""
        return range(self.size - self.drafters)

    @property
    def target_groups(self) -> list[range]:
        """The ranks that make one target each, in order."""
        return [self.target_ranks[first : first + self.target_gpus] for first in self.target_ranks[:: self.target_gpus]]

    @property
    def drafter_ranks(self) -> tuple[int, ...]:
        """The drafters' ranks, in order."""
        return tuple(range(self.size - self.drafters, self.size))


@dataclass(frozen=True)
class TrainConfig:
    """One training. A step is `accumulate` micro-batches of `rows` packed rows a drafter; `anchors` blocks start in a
    row. `dtype` is that of weights and states; in bfloat16 the optimizer keeps float32 masters. A step whose loss or
    gradient is `not_finite` stops the training, or is passed over ("skip"): weights and optimizer stay as they were.
    `loss` weighs the slots of a block by a fixed "decay", or by the drafter's own confidence, "dpace" with its
    `dpace_alpha` (arXiv 2605.18810). The share `kl` of a slot's loss is the divergence from the target's distribution,
    for which the target runs all of its layers, and the rest the cross-entropy with its token. Workers that are
    processes and wait for one another longer than `patience_s` seconds are ended, and said to have hung.

    After each `evaluate_every` steps (0: never) and the last, the drafter is measured on held-out rows, the same
    `evaluate_batches` micro-batches at most each time; its weights stay as they are.

    `gamma` is the loss decay; left out, the paper's value for the block size is used, and a block size that the
    paper does not list is refused, so that the decay is never off unnoticed. `start` is the folder of a published
    drafter of the same shape whose weights are trained on, with a fresh optimizer.
    """

    draft: DraftConfig = field(default_factory=DraftConfig)
    topology: Topology = field(default_factory=Topology)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    rows: int = 2
    accumulate: int = 1
    anchors: int = 512
    dtype: str = "float32"
    not_finite: str = "stop"
    loss: str = "decay"
    dpace_alpha: float = 0.5
    kl: float = 0.0
    gamma: float | None = None
    start: str | None = None
    steps: int = 1000
    seed: int = 0
    checkpoint_every: int = 200
    evaluate_every: int = 0
    evaluate_batches: int = 64
    prefetch: int = 2
    compile: bool = True
    patience_s: float = 600.0
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_least(self, 1, "rows", "accumulate", "anchors", "steps", "checkpoint_every", "prefetch")
        check_least(self, 0, "evaluate_every")
        check_least(self, 1, "evaluate_batches")
        if not self.patience_s > 0:
            raise ValueError(f"patience_s must be above 0, not {self.patience_s}")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype is float32 or bfloat16, not '{self.dtype}'")
        if self.not_finite not in ("stop", "skip"):
            raise ValueError(f"not_finite is stop or skip, not '{self.not_finite}'")
        if self.gamma is not None and not self.gamma > 0:
            raise ValueError(f"gamma must be above 0, not {self.gamma}")
        if self.loss not in ("decay", "dpace"):
            raise ValueError(f"loss is decay or dpace, not '{self.loss}'")
        if not 0 < self.dpace_alpha <= 1:
            raise ValueError(f"dpace_alpha is above 0 and at most 1, not {self.dpace_alpha}")
        if not 0 <= self.kl <= 1:
            raise ValueError(f"kl is a share of the loss in [0, 1], not {self.kl}")
        if self.gamma is None and self.loss == "decay" and self.draft.block not in GAMMAS:
            raise ValueError(f"gamma must be given for block {self.draft.block}: the paper has none for it")
        check_device(self.device)

    @property
    def decay(self) -> float:
        """The loss decay in force."""
        return self.gamma if self.gamma is not None else GAMMAS[self.draft.block]

    @property
    def captured(self) -> int | None:
        """The number of captured layers, unless the target must run beyond the last of them."""
        return None if self.kl else self.draft.features

    @property
    def dpace(self) -> float | None:
        """D-PACE's alpha, where its weights are in force."""
        return self.dpace_alpha if self.loss == "dpace" else None


GRAPH_FIELDS = ("draft", "topology", "optimizer.name", "rows", "accumulate", "anchors", "dtype", "kl", "device")
"""The fields of a `TrainConfig` that shape a compiled graph, by path; the others only steer the training."""


def train_config(fields: Mapping[str, Any]) -> TrainConfig:
    """The configuration that `dataclasses.asdict` took apart."""
    parts = {"draft": DraftConfig, "topology": Topology, "optimizer": OptimizerConfig}
    return TrainConfig(**{name: parts[name](**value) if name in parts else value for name, value in fields.items()})


@dataclass(frozen=True)
class PrewarmConfig:
    """Pre-warm for the training step that `for_step` names: its graphs, in its layout."""

    for_step: str


@dataclass(frozen=True)
class ExportConfig:
    """Export has nothing to choose: the layout is the published one."""


@dataclass(frozen=True)
class EvaluateConfig:
    """How much is decoded, and how. All prompts get exactly `new_tokens` tokens, so that acceptance is measured over
    the same number of tokens everywhere; with `stop` the target's end token ends an answer before that. `limit` is the
    number of prompts (0: all). An untrained drafter decodes the first `untrained_prompts` for comparison. `threads` 0
    leaves the number to torch.

    float64 is the default because in float32 the target's own argmax can differ between one token and a block of
    them where two logits nearly tie. (transformers computes norms in float32 whatever the dtype: ties closer than
    about 1e-7 remain possible, and would show as an output that differs.)
    """

    new_tokens: int = 128
    temperature: float = 0.0
    limit: int = 0
    stop: bool = False
    untrained_prompts: int = 4
    dtype: str = "float64"
    threads: int = 1
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_device(self.device)
        if self.dtype not in ("float64", "float32", "bfloat16"):
            raise ValueError(f"dtype is float64, float32 or bfloat16, not '{self.dtype}'")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is 0 (greedy) or above, not {self.temperature}")
        if self.new_tokens < 2:
            raise ValueError(f"new_tokens must be at least 2, not {self.new_tokens}: the first needs no drafter")
        check_least(self, 0, "limit", "untrained_prompts", "threads")
