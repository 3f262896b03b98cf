"""The drafter against the paper: training's forward pass, and inference's, give what a slow reading of it gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dflash.model.draft import DFlashDraftModel, KeyValue, capture_layers
from dflash.model.loss import slot_decay
from dflash.model.target import Capture
from dflash.training.batches import MicroBatch
from dflash.training.regions import Labels, labels
from tests.model.reference import Rules, SlowDraft, slow_terms
from tests.tiny import BLOCK, draft_eagerly, micro_batch, new_draft

GAMMA = 4.0
WINDOW = 6
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


@pytest.fixture(scope="module")
def scene(target: Qwen3ForCausalLM) -> Scene:
    return scene_of(target, new_draft())


@pytest.fixture(scope="module")
def sliding(target: Qwen3ForCausalLM) -> Scene:
    """The same with a drafter whose first layer slides, and whose last does not."""
    return scene_of(target, new_draft(sliding=1, window=WINDOW))


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


@pytest.fixture(scope="module")
def slow(scene: Scene) -> list[SlowBlock]:
    return slow_blocks(scene)


@pytest.fixture(scope="module")
def slow_sliding(sliding: Scene) -> list[SlowBlock]:
    return slow_blocks(sliding)


def test_a_training_pass_over_packed_rows_is_the_papers_one_block_at_a_time(scene: Scene, slow: list[SlowBlock]):
    agree(scene, slow)


def test_so_it_is_with_a_sliding_layer(sliding: Scene, slow_sliding: list[SlowBlock]):
    agree(sliding, slow_sliding)


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


def test_right_and_accepted_tokens_are_counted_as_one_would_by_hand(scene: Scene, slow: list[SlowBlock]):
    wanted = scene.wanted()
    # Labels that the drafter does say: what it says itself, spoiled at every seventh place.
    said = torch.zeros(*scene.batch.anchors.shape, BLOCK - 1, dtype=torch.long)
    for block in slow:
        said[block.slot] = block.logits.argmax(-1)[1:]
    spoken = said.clone()
    said.view(-1)[::7] += 1
    relabelled = replace(wanted, tokens=said.flatten(0, 1))
    outcome = draft_eagerly(scene.draft, scene.target, scene.batch, scene.features, relabelled)
    valid, correct = (each.view(said.shape) for each in (wanted.valid, outcome.correct))
    for block in slow:
        right = (spoken == said)[block.slot].tolist()
        assert correct[block.slot].tolist() == right
        gained = 1
        while gained < BLOCK and right[gained - 1] and valid[block.slot][gained - 1]:
            gained += 1
        assert int(outcome.accepted.view(said.shape[:2])[block.slot]) == gained
    assert set(outcome.accepted.tolist()) >= {1, 2, 3}


FAULTS = {
    "the anchor's own hidden state is visible": Rules(context=lambda position, anchor: position <= anchor),
    "a token after the anchor is visible": Rules(context=lambda position, anchor: position <= anchor + 1),
    "the last context token is hidden": Rules(context=lambda position, anchor: position < anchor - 1),
    "the block is causal": Rules(block=lambda query, key: key <= query),
    "a token does not see itself": Rules(block=lambda query, key: key != query),
    "positions start one too early": Rules(first_position=lambda anchor: anchor - 1),
    "positions start one too late": Rules(first_position=lambda anchor: anchor + 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_notices_that(scene: Scene, slow: list[SlowBlock], fault: str):
    wrong = slow_blocks(scene, FAULTS[fault])
    assert max_difference(slow, [block.terms() for block in wrong]) > 1000 * CLOSE


SLIDING_FAULTS = {
    "the window is one too short": Rules(
        sliding_context=lambda position, anchor, offset, window: anchor + offset - (window - 2) <= position < anchor
    ),
    "the window is one too long": Rules(
        sliding_context=lambda position, anchor, offset, window: anchor + offset - window <= position < anchor
    ),
    "the window ends with the anchor": Rules(
        sliding_context=lambda position, anchor, offset, window: anchor - (window - 1) <= position < anchor
    ),
    "the whole context is visible": Rules(sliding_context=lambda position, anchor, offset, window: position < anchor),
    "the anchor's own hidden state is in the window": Rules(
        sliding_context=lambda position, anchor, offset, window: anchor + offset - (window - 1) <= position <= anchor
    ),
    "a sliding layer is not causal": Rules(sliding_block=lambda query, key: True),
    "a sliding layer's token does not see itself": Rules(sliding_block=lambda query, key: key < query or not query),
    "a full layer is causal": Rules(block=lambda query, key: key <= query),
}


@pytest.mark.parametrize("fault", SLIDING_FAULTS)
def test_with_a_sliding_layer_the_comparison_notices_that(sliding: Scene, slow_sliding: list[SlowBlock], fault: str):
    wrong = slow_blocks(sliding, SLIDING_FAULTS[fault], last=2)
    assert max_difference(slow_sliding[-2:], [block.terms() for block in wrong]) > 1000 * CLOSE


@pytest.mark.parametrize("shift", [-1, 1])
def test_the_comparison_notices_labels_that_are_off_by_one(slow: list[SlowBlock], shift: int):
    assert max_difference(slow, [block.terms(shift) for block in slow]) > 1000 * CLOSE


def max_difference(slow: list[SlowBlock], others: list[list[tuple[float, float]]]) -> float:
    pairs = [pair for block, other in zip(slow, others, strict=True) for pair in zip(block.terms(), other, strict=True)]
    return max(abs(mine[0] - other[0]) for mine, other in pairs)


def test_inference_drafts_what_training_drafts_at_the_same_anchor(scene: Scene):
    """Block by block with kept contexts, each in one document alone; packed beside others in training."""
    infer_the_same(scene)


def test_so_it_does_with_a_sliding_layer_which_keeps_no_more_than_its_window(sliding: Scene):
    contexts = infer_the_same(sliding)
    assert [key.shape[2] for key, _ in contexts] == [WINDOW - 1, 16]


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


@pytest.mark.parametrize("place", range(24))
def test_of_the_features_only_those_before_the_anchor_in_its_document_matter(scene: Scene, place: int):
    features = scene.features.clone()
    features[:, place] += 1.0
    moved = (scene.surprise(features=features) - scene.surprise()).abs().amax(-1)
    for row, slot, anchor in used(scene):
        before = place < anchor and scene.batch.documents[row, place] == scene.batch.documents[row, anchor]
        assert moved[row, slot] > 1e-3 if before else moved[row, slot] == 0, (row, anchor)


def test_of_the_features_a_sliding_layers_slot_reads_only_those_in_its_window(target: Qwen3ForCausalLM):
    """One layer, so that nothing reaches a slot by way of another."""
    scene = scene_of(target, new_draft(layers=1, sliding=1, window=WINDOW))
    before = scene.surprise()
    for place in range(24):
        features = scene.features.clone()
        features[:, place] += 1.0
        moved = (scene.surprise(features=features) - before).abs()
        for row, slot, anchor in used(scene):
            document, _ = own_document(scene.batch, row, anchor)
            for k in range(1, BLOCK):
                seen = max(document.start, anchor + k - (WINDOW - 1)) <= place < anchor
                assert moved[row, slot, k - 1] > 1e-4 if seen else moved[row, slot, k - 1] == 0, (row, anchor, k, place)


@pytest.mark.parametrize("place", range(24))
def test_a_text_token_after_the_anchor_or_of_another_document_changes_no_draft(scene: Scene, place: int):
    """Through the target, too: its features may look neither ahead nor across documents."""
    tokens = scene.batch.tokens.clone()
    tokens[:, place] = (tokens[:, place] + 1) % 256
    batch = replace(scene.batch, tokens=tokens)
    moved = (scene.surprise(batch, features_of(scene.target, scene.draft, batch)) - scene.surprise()).abs().amax(-1)
    for row, slot, anchor in used(scene):
        before = place <= anchor and scene.batch.documents[row, place] == scene.batch.documents[row, anchor]
        assert moved[row, slot] > 1e-3 if before else moved[row, slot] < CLOSE, (row, anchor)


def test_other_blocks_of_the_row_change_no_draft(scene: Scene):
    together = scene.surprise()
    for row, slot, anchor in used(scene):
        anchors = torch.full_like(scene.batch.anchors, -1)
        anchors[row, slot] = anchor
        alone = scene.surprise(replace(scene.batch, anchors=anchors))
        assert torch.allclose(alone[row, slot], together[row, slot], rtol=CLOSE, atol=CLOSE)


def test_every_trained_tensor_gets_a_gradient_and_the_targets_get_none(scene: Scene):
    draft_eagerly(scene.draft, scene.target, scene.batch, scene.features, scene.wanted()).loss.backward()
    try:
        for name, parameter in scene.draft.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
        assert all(parameter.grad is None for parameter in scene.target.parameters())
    finally:
        scene.draft.zero_grad()


def used(scene: Scene) -> Iterator[tuple[int, int, int]]:
    for row, anchors in enumerate(scene.batch.anchors.tolist()):
        yield from ((row, slot, anchor) for slot, anchor in enumerate(anchors) if anchor >= 0)


@pytest.mark.parametrize(
    ("layers", "count", "ids"),
    [
        (36, 5, [1, 9, 17, 25, 33]),
        (28, 5, [1, 7, 13, 19, 25]),
        (64, 5, [1, 16, 31, 46, 61]),
        (48, 5, [1, 12, 23, 34, 45]),
        (6, 3, [1, 2, 3]),
        (36, 2, [1, 33]),
        (36, 1, [18]),
        (3, 1, [1]),
    ],
)
def test_captured_layers_are_equally_spaced(layers: int, count: int, ids: list[int]):
    assert capture_layers(layers, count) == ids


@pytest.mark.parametrize(("layers", "count"), [(6, 4), (4, 2), (3, 2), (2, 1), (1, 1)])
def test_a_target_with_too_few_layers_is_refused(layers: int, count: int):
    with pytest.raises(ValueError, match=f"{layers} layers has no {count} different"):
        capture_layers(layers, count)


def test_in_bfloat16_positions_are_turned_by_the_same_angles():
    draft = new_draft().float()
    exact = draft.rotary_emb.inv_freq.clone()
    draft.to(torch.bfloat16)
    assert draft.fc.weight.dtype == torch.bfloat16
    assert torch.equal(draft.rotary_emb.inv_freq, exact)
    assert not torch.equal(exact.bfloat16().float(), exact)
