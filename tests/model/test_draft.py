"""The drafter against the paper: training's forward pass, and inference's, give what a slow reading of it gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import Qwen3ForCausalLM

from dflash.model.draft import capture_layers
from tests.model.reference import Rules
from tests.model.scene import (
    CLOSE,
    Scene,
    SlowBlock,
    agree,
    features_of,
    infer_the_same,
    max_difference,
    scene_of,
    slow_blocks,
    used,
)
from tests.tiny import BLOCK, draft_eagerly, new_draft


@pytest.fixture(scope="module")
def scene(target: Qwen3ForCausalLM) -> Scene:
    return scene_of(target, new_draft())


@pytest.fixture(scope="module")
def slow(scene: Scene) -> list[SlowBlock]:
    return slow_blocks(scene)


def test_a_training_pass_over_packed_rows_is_the_papers_one_block_at_a_time(scene: Scene, slow: list[SlowBlock]):
    agree(scene, slow)


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


@pytest.mark.parametrize("shift", [-1, 1])
def test_the_comparison_notices_labels_that_are_off_by_one(slow: list[SlowBlock], shift: int):
    assert max_difference(slow, [block.terms(shift) for block in slow]) > 1000 * CLOSE


def test_inference_drafts_what_training_drafts_at_the_same_anchor(scene: Scene):
    """Block by block with kept contexts, each in one document alone; packed beside others in training."""
    infer_the_same(scene)


@pytest.mark.parametrize("place", range(24))
def test_of_the_features_only_those_before_the_anchor_in_its_document_matter(scene: Scene, place: int):
    features = scene.features.clone()
    features[:, place] += 1.0
    moved = (scene.surprise(features=features) - scene.surprise()).abs().amax(-1)
    for row, slot, anchor in used(scene):
        before = place < anchor and scene.batch.documents[row, place] == scene.batch.documents[row, anchor]
        assert moved[row, slot] > 1e-3 if before else moved[row, slot] == 0, (row, anchor)


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
