"""Two packed rows, a target and a drafter; what training gives of them, and what a slow reading of the paper gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dflash.model.draft import DFlashDraftModel, KeyValue
from dflash.model.loss import slot_decay
from dflash.model.target import Capture
from dflash.training.batches import MicroBatch
from dflash.training.regions import Labels, labels
from tests.model.reference import Rules, SlowDraft, slow_terms
from tests.tiny import BLOCK, draft_eagerly, micro_batch

GAMMA = 4.0
CLOSE = 1e-5
"""transformers' RMSNorm and our cross-entropy compute in float32 (eps 6e-8) whatever the dtype, so two correct
computations in float64 differ by up to 1e-6; a fault moves some slot by more than 1e-2."""


@dataclass(frozen=True)
class Scene:
    """Two packed rows, the target's features of them, and a drafter."""

    target: Qwen3ForCausalLM
    draft: DFlashDraftModel
    batch: MicroBatch
    features: Tensor

    def wanted(self) -> Labels:
        return labels(self.batch, slot_decay(BLOCK, GAMMA), BLOCK)

    def surprise(self, batch: MicroBatch | None = None, features: Tensor | None = None) -> Tensor:
        """-log p (R, A, block - 1) of each slot's label, labels as in the scene's own batch: the loss is the sum of
        weight x -log p, so this is its gradient by the weights."""
        wanted = self.wanted()
        weights = wanted.weights.double().requires_grad_()
        asked = replace(wanted, weights=weights)
        features = self.features if features is None else features
        loss = draft_eagerly(self.draft, self.target, batch or self.batch, features, asked).loss
        (found,) = torch.autograd.grad(loss, weights)
        return found.view(*self.batch.anchors.shape, -1)


def features_of(target: Qwen3ForCausalLM, draft: DFlashDraftModel, batch: MicroBatch) -> Tensor:
    return Capture(target, draft.target_layer_ids).features(batch.tokens, batch.positions, batch.documents)


def scene_of(target: Qwen3ForCausalLM, draft: DFlashDraftModel) -> Scene:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 256, (2, 24), generator=generator)
    trainable = torch.rand(2, 24, generator=generator) < 0.9
    # Anchors that overlap, that end a document, that start one, at a row's end, and slots that are not used.
    anchors = [[2, 3, 8, 12, 19, -1], [0, 4, 11, 20, 21, -1]]
    batch = micro_batch(tokens, [[9, 12], [5, 19]], anchors, trainable)
    return Scene(target, draft, batch, features_of(target, draft, batch))


def own_document(batch: MicroBatch, row: int, anchor: int) -> tuple[slice, int]:
    """Where in the row the anchor's document lies, and the anchor's place in it."""
    places = (batch.documents[row] == batch.documents[row, anchor]).nonzero().flatten().tolist()
    return slice(places[0], places[-1] + 1), anchor - places[0]


@dataclass(frozen=True)
class SlowBlock:
    """One anchor's drafted logits (block, V), from its document alone."""

    slot: tuple[int, int]
    logits: Tensor
    tokens: Tensor
    trainable: Tensor
    anchor: int

    def terms(self, shift: int = 0) -> list[tuple[float, float]]:
        return slow_terms(self.logits, self.tokens, self.trainable, self.anchor + shift, GAMMA)


@torch.no_grad()
def slow_blocks(scene: Scene, rules: Rules | None = None, *, last: int = 0) -> list[SlowBlock]:
    """The `last` of the scene's blocks, or all."""
    slow = SlowDraft(scene.draft.state_dict(), scene.draft.config, rules)
    embedding, head = scene.target.model.embed_tokens.weight, scene.target.lm_head.weight
    blocks = []
    for row, slot, place in list(used(scene))[-last:]:
        span, anchor = own_document(scene.batch, row, place)
        tokens = scene.batch.tokens[row, span]
        # The target alone on this document, by transformers, and the drafter's features picked from all it gives.
        states = scene.target(tokens[None], output_hidden_states=True).hidden_states
        features = torch.cat([states[layer + 1][0] for layer in scene.draft.target_layer_ids], dim=-1)
        drafted = slow(tokens, features, anchor, embedding)
        blocks.append(SlowBlock((row, slot), drafted @ head.T, tokens, scene.batch.trainable[row, span], anchor))
    return blocks


def used(scene: Scene) -> Iterator[tuple[int, int, int]]:
    for row, anchors in enumerate(scene.batch.anchors.tolist()):
        yield from ((row, slot, anchor) for slot, anchor in enumerate(anchors) if anchor >= 0)


def agree(scene: Scene, slow: list[SlowBlock]) -> None:
    wanted, surprise = scene.wanted(), scene.surprise()
    weights = wanted.weights.view(surprise.shape)
    loss = weight = 0.0
    for block in slow:
        for k, (expected, w) in enumerate(block.terms()):
            assert float(weights[block.slot][k]) == pytest.approx(w, rel=1e-6)
            assert not w or float(surprise[block.slot][k]) == pytest.approx(expected, abs=CLOSE, rel=CLOSE)
            loss, weight = loss + w * expected, weight + w
    assert float(weights.sum()) == pytest.approx(weight, rel=1e-6)
    outcome = draft_eagerly(scene.draft, scene.target, scene.batch, scene.features, wanted)
    assert outcome.loss.item() == pytest.approx(loss, rel=CLOSE)


def max_difference(slow: list[SlowBlock], others: list[list[tuple[float, float]]]) -> float:
    pairs = [pair for block, other in zip(slow, others, strict=True) for pair in zip(block.terms(), other, strict=True)]
    return max(abs(mine[0] - other[0]) for mine, other in pairs)


def infer_the_same(scene: Scene) -> list[KeyValue]:
    """The contexts that the last document ended with."""
    trained, wanted = scene.surprise(), scene.wanted()
    embed, head = scene.target.model.embed_tokens, scene.target.lm_head
    compared = 0
    for row, number in ((0, 0), (0, 1), (1, 1)):
        places = (scene.batch.documents[row] == number).nonzero().flatten()
        features, start = scene.features[row, places], int(places[0])
        contexts, known = None, 0
        for slot, place in enumerate(scene.batch.anchors[row].tolist()):
            anchor = place - start
            if place < 0 or scene.batch.documents[row, place] != number:
                continue
            more = torch.arange(known, anchor)
            contexts, known = scene.draft.extend(contexts, features[None, more], more[None]), anchor
            block = torch.tensor([[int(scene.batch.tokens[row, place])] + [scene.draft.mask_token_id] * (BLOCK - 1)])
            drafted = scene.draft(embed(block), torch.arange(anchor, anchor + BLOCK)[None], contexts)
            which = row * scene.batch.anchors.shape[1] + slot
            logs = head(drafted[0, 1:]).log_softmax(-1).gather(1, wanted.tokens[which][:, None])[:, 0]
            assert torch.allclose(-logs, trained[row, slot], rtol=CLOSE, atol=CLOSE)
            compared += 1
    assert compared == 8
    assert contexts is not None
    return contexts
