"""A drafter whose first layer slides, against the paper's reading: the window, the causal block, what is kept."""

from __future__ import annotations

import pytest
from transformers import Qwen3ForCausalLM

from tests.model.reference import Rules
from tests.model.scene import (
    CLOSE,
    Scene,
    SlowBlock,
    agree,
    infer_the_same,
    max_difference,
    own_document,
    scene_of,
    slow_blocks,
    used,
)
from tests.tiny import BLOCK, new_draft

WINDOW = 6


@pytest.fixture(scope="module")
def sliding(target: Qwen3ForCausalLM) -> Scene:
    """The same with a drafter whose first layer slides, and whose last does not."""
    return scene_of(target, new_draft(sliding=1, window=WINDOW))


@pytest.fixture(scope="module")
def slow_sliding(sliding: Scene) -> list[SlowBlock]:
    return slow_blocks(sliding)


def test_so_it_is_with_a_sliding_layer(sliding: Scene, slow_sliding: list[SlowBlock]):
    agree(sliding, slow_sliding)


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


def test_so_it_does_with_a_sliding_layer_which_keeps_no_more_than_its_window(sliding: Scene):
    contexts = infer_the_same(sliding)
    assert [key.shape[2] for key, _ in contexts] == [WINDOW - 1, 16]


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
