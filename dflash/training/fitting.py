"""What of a training fits into a GPU's memory: what a worker needs by its sizes, and which smaller ones would fit.

Weights, gradients and optimizer state are counted; activations go with the tokens of the rows and with the drafted
tokens, by a count of what a layer keeps, corrected by the peak that the warm-up saw.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from transformers import PretrainedConfig

from dflash.model.cross_entropy import PIECE
from dflash.model.tiles import TILE
from dflash.training.config import TrainConfig
from dflash.training.costs import USABLE
from dflash.training.drafts import handed_over

GIB = 2**30


@dataclass(frozen=True)
class Memory:
    """A GPU's memory in bytes, all of it and what is free, what this process has `reserved`, and what of that its
    tensors `hold`."""

    total: int
    free: int
    reserved: int
    hold: int

    @property
    def others(self) -> int:
        """What is in use by others, and by the GPU's own context."""
        return max(0, self.total - self.free - self.reserved)

    @property
    def room(self) -> float:
        """What may be planned with."""
        return (self.total - self.others) * USABLE


@dataclass(frozen=True)
class Sizes:
    """Of a micro-batch: `rows` of `length` tokens with `anchors` blocks of `block` tokens each."""

    rows: int
    length: int
    anchors: int
    block: int


@dataclass(frozen=True)
class Needs:
    """Bytes that a worker needs: `kept` for good, `once` whatever the sizes, and for each `token` of its rows and each
    `drafted` token."""

    kept: float
    once: float
    token: float
    drafted: float

    def of(self, sizes: Sizes) -> float:
        """All that it needs at its peak."""
        by_row = self.token * sizes.length + self.drafted * sizes.anchors * sizes.block
        return self.kept + self.once + by_row * sizes.rows

    def seen(self, sizes: Sizes, peak: float) -> Needs:
        """The same, corrected so that `sizes` need `peak`: all but what is kept was estimated."""
        factor = max(0.0, peak - self.kept) / (self.of(sizes) - self.kept)
        return Needs(self.kept, *(factor * each for each in (self.once, self.token, self.drafted)))


def parameters(draft: PretrainedConfig) -> int:
    """How many a drafter trains."""
    hidden, head, inner = draft.hidden_size, draft.head_dim, draft.intermediate_size
    queries, pairs = draft.num_attention_heads * head, draft.num_key_value_heads * head
    layer = 2 * hidden * (queries + pairs) + 3 * hidden * inner + 2 * hidden + 2 * head
    return int(draft.num_hidden_layers * layer + _features(draft) * hidden**2 + 2 * hidden)


def drafter_cost(config: TrainConfig, draft: PretrainedConfig, *, tied: bool) -> Needs:
    """A drafter worker's, before anything was seen; `draft` is the drafter's configuration, `tied` whether the target's
    embedding is its head, too."""
    wide = _bytes(config)
    hidden, head, inner = draft.hidden_size, draft.head_dim, draft.intermediate_size
    queries, pairs = draft.num_attention_heads * head, draft.num_key_value_heads * head
    gradient = 4 if config.accumulate > 1 else wide
    state = 4 if config.optimizer.name == "muon" else 8
    master = 4 if wide < 4 else 0
    ends = draft.vocab_size * hidden * wide * (1 if tied else 2)
    layer = 4 * hidden + 3 * queries + 4 * pairs + 3 * inner
    return Needs(
        kept=parameters(draft) * (wide + gradient + state + master) + ends,
        once=wide * PIECE * draft.vocab_size * (2 if config.kl else 1),
        token=wide * (2 * handed_over(config, draft) + 3 * hidden + draft.num_hidden_layers * 4 * pairs),
        drafted=wide * (draft.num_hidden_layers * layer + 2 * hidden),
    )


def target_cost(config: TrainConfig, draft: PretrainedConfig, kept: float) -> Needs:
    """A target worker's, whose weights take `kept` bytes; its widths are those of the drafter."""
    wide = _bytes(config)
    hidden, inner = draft.hidden_size, draft.intermediate_size
    ahead = (1 + config.prefetch) * handed_over(config, draft)
    return Needs(kept=kept, once=0.0, token=wide * (ahead + 6 * hidden + 3 * inner), drafted=0.0)


def _bytes(config: TrainConfig) -> int:
    return 2 if config.dtype == "bfloat16" else 4


def _features(draft: PretrainedConfig) -> int:
    return len(draft.dflash_config["target_layer_ids"])


def smaller(cost: Needs, sizes: Sizes, buckets: Sequence[int], room: float) -> list[tuple[str, float]]:
    """What can be set so that a worker needs at most `room` bytes, and how many it needs then: one change each, or, if
    none is enough, one beside a single row. `sizes` are of the longest of `buckets`; nothing, if that does not do."""
    for before, rows in (("", sizes.rows), ("--set train.rows=1 ", 1)):
        found: dict[str, tuple[str, float]] = {}
        for kind, words, needs in _changes(cost, replace(sizes, rows=rows), buckets, before):
            if needs <= room and kind not in found:
                found[kind] = words, needs
        if found:
            return list(found.values())
    return []


def _changes(cost: Needs, sizes: Sizes, buckets: Sequence[int], before: str) -> Iterator[tuple[str, str, float]]:
    """The kind of each change, how it is set, and what is needed then; of a kind the smallest change first."""
    for rows in range(sizes.rows - 1, 0, -1):
        yield "rows", f"{before}--set train.rows={rows}", cost.of(replace(sizes, rows=rows))
    step = TILE // math.gcd(TILE, sizes.block)
    if cost.drafted:
        for anchors in range((sizes.anchors - 1) // step * step, 0, -step):
            yield "anchors", f"{before}--set train.anchors={anchors}", cost.of(replace(sizes, anchors=anchors))
    for count in range(len(buckets) - 1, 0, -1):
        words = ",".join(map(str, buckets[:count]))
        needs = cost.of(replace(sizes, length=buckets[count - 1]))
        yield "buckets", f"{before}--set 'data.buckets=[{words}]'", needs


def sizes_cure(
    cost: Needs, failed: Sizes, buckets: Sequence[int], memory: Memory, *, wanted: float = 0.0, dtype: str
) -> str:
    """What to do for a worker that `wanted` so many bytes more for `failed`, and found `memory`."""
    all_there_was = memory.total - memory.others
    cost = cost.seen(failed, max(cost.of(failed), all_there_was))  # an estimate below it has proved wrong
    asked = replace(failed, length=buckets[-1])
    advice = []
    if memory.others > GIB and cost.of(asked) <= memory.total * USABLE:
        advice.append(f"end what else uses that GPU ({gib(memory.others)})")
    if memory.reserved - memory.hold > wanted > 0:
        advice.append("set PYTORCH_ALLOC_CONF=expandable_segments:True, since what is free is in pieces")
    if found := smaller(cost, asked, buckets, memory.room):
        sizes = " or ".join(f"{words} ({gib(needs)})" for words, needs in found)
        advice.append(f"take sizes that are estimated to fit: {sizes}")
    else:
        advice.append(f"no smaller sizes would fit, as {gib(cost.kept)} are needed before the first row")
        advice.append(_less(dtype))
    return "; or ".join(advice)


def loading_cure(kept: float | None, memory: Memory, dtype: str) -> str:
    """What to do for a worker whose models did not fit: `kept` bytes, if that is known."""
    needs = "" if kept is None else f"{gib(kept)} are needed before the first row; "
    free_it = f"end what else uses that GPU ({gib(memory.others)}), or " if memory.others > GIB else ""
    return f"{needs}{free_it}{_less(dtype)}"


def _less(dtype: str) -> str:
    half = "train.dtype=bfloat16, " if dtype == "float32" else ""
    return f"choose {half}a smaller model, or GPUs with more memory"


def gib(size: float) -> str:
    """Bytes in GiB, as torch tells them."""
    return f"{size / GIB:.1f} GiB"


def corrected(cost: Needs, sizes: Sizes, peaks: Mapping[int, int]) -> Needs:
    """`cost` after the warm-up of some buckets, whose peaks in bytes are given by length: the longest tells most."""
    return cost.seen(replace(sizes, length=max(peaks)), peaks[max(peaks)]) if peaks else cost
