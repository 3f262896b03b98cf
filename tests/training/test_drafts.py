"""A fresh drafter: the target's shape, the published fields, and weights that the seed alone decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dflash.errors import UsageError
from dflash.model.draft import DFlashDraftModel
from dflash.training.config import DraftConfig
from dflash.training.drafts import draft_config, fresh_draft
from tests.tiny import target_config

WANTED = DraftConfig(layers=2, features=3, block=4, mask_token_id=260)


def test_what_is_not_chosen_is_the_targets():
    target = target_config()
    config = draft_config(target, WANTED)
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_parameters",
    ):
        assert getattr(config, name) == getattr(target, name), name
    assert config.num_hidden_layers == 2
    assert config.num_target_layers == 6
    assert config.block_size == 4
    assert config.dflash_config == {"mask_token_id": 260, "target_layer_ids": [1, 2, 3], "block_size": 4}


def test_its_mlp_may_be_narrower_than_the_targets():
    chosen = draft_config(target_config(), replace(WANTED, intermediate=40))
    assert (chosen.intermediate_size, target_config().intermediate_size) == (40, 48)
    assert DFlashDraftModel(chosen).layers[0].mlp.up_proj.weight.shape == (40, 32)
    with pytest.raises(ValueError, match="intermediate must be at least 1, not 0"):
        replace(WANTED, intermediate=0)


def test_the_first_layers_slide_if_any_do():
    config = draft_config(target_config(), replace(WANTED, layers=5, sliding=4, window=2048))
    assert config.layer_types == ["sliding_attention"] * 4 + ["full_attention"]
    assert (config.sliding_window, config.use_sliding_window) == (2048, True)
    assert DFlashDraftModel(config).windows == [2048] * 4 + [None]
    none = draft_config(target_config(), WANTED)
    assert (none.layer_types, none.sliding_window) == (["full_attention"] * 2, None)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"layers": 3, "sliding": 4}, "sliding is how many of the 3 layers slide, not 4"),
        ({"sliding": -1}, "sliding is how many of the 5 layers slide, not -1"),
        ({"sliding": 1, "window": 15}, r"window \(15\) must be at least block \(16\)"),
    ],
)
def test_layers_that_can_not_slide_are_refused_by_setting(fields: dict[str, int], line: str):
    with pytest.raises(ValueError, match=line):
        DraftConfig(**fields)


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        (DraftConfig(features=4, mask_token_id=260), "train.draft.features: a target of 6 layers has no 4 different"),
        (DraftConfig(features=3), "train.draft.mask_token_id: has no value; name a vocabulary row no text uses"),
        (DraftConfig(features=3, mask_token_id=272), "train.draft.mask_token_id: 272 is not a row of the target's"),
        (DraftConfig(features=3, mask_token_id=-1), "train.draft.mask_token_id: -1 is not a row of the target's"),
    ],
)
def test_what_does_not_fit_the_target_is_refused_by_setting(wanted: DraftConfig, line: str):
    with pytest.raises(UsageError) as caught:
        draft_config(target_config(), wanted)
    assert str(caught.value).startswith(line)


def test_first_weights_depend_on_the_seed_alone():
    config = draft_config(target_config(), WANTED)
    one = fresh_draft(config, 3).state_dict()
    torch.manual_seed(99)
    torch.rand(5)
    same, other = fresh_draft(config, 3).state_dict(), fresh_draft(config, 4).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert [name for name in one if not torch.equal(one[name], other[name])] == [n for n in one if one[n].ndim == 2]


def test_matrices_start_small_and_norms_at_one():
    config = draft_config(target_config(), WANTED)
    for name, parameter in fresh_draft(config, 0).named_parameters():
        if parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(config.initializer_range, rel=0.15), name
            assert abs(parameter.mean().item()) < 0.005, name
        else:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
