"""A drafter of another target is refused by what differs, with both values."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import Qwen3Config

from dflash.errors import CheckpointError
from dflash.model.bytelevel import MASK_ID, VOCABULARY
from dflash.model.fit import misfits, refuse_misfit
from dflash.training.config import DraftConfig
from dflash.training.drafts import draft_config
from tests.tiny import HIDDEN, target_config


def drafter(**changes: Any) -> Qwen3Config:
    config = draft_config(target_config(), DraftConfig(layers=2, features=3, block=4, mask_token_id=MASK_ID))
    config.dflash_config |= {name: changes.pop(name) for name in list(changes) if name in config.dflash_config}
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def test_a_drafter_fits_the_target_that_it_was_made_for():
    refuse_misfit(drafter(), target_config(), "here")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": 64}, f"its hidden_size is 64, the target's {HIDDEN}"),
        ({"vocab_size": 151936}, f"its vocab_size is 151936, the target's {VOCABULARY}"),
        ({"num_target_layers": 36}, "its num_target_layers is 36, the target has 6"),
        ({"target_layer_ids": [1, 9, 17]}, "it captures the layers [1, 9, 17], the target has 0 to 5"),
        ({"target_layer_ids": [-1, 1, 2]}, "it captures the layers [-1, 1, 2], the target has 0 to 5"),
        ({"target_layer_ids": []}, "it captures the layers [], the target has 0 to 5"),
        ({"mask_token_id": VOCABULARY}, f"its mask token {VOCABULARY} is not one of the target's {VOCABULARY}"),
    ],
)
def test_what_does_not_fit_is_named_with_both_values(changes: dict[str, Any], says: str):
    with pytest.raises(CheckpointError) as refusal:
        refuse_misfit(drafter(**changes), target_config(), "here")
    assert str(refusal.value) == (
        f"here: the drafter is not for this target: {says}; name the target that it was trained for"
    )


def test_all_that_differs_is_named_at_once():
    assert len(misfits(drafter(hidden_size=64, vocab_size=9, mask_token_id=-1), target_config())) == 3


def test_an_older_drafter_that_does_not_say_its_targets_depth_fits():
    config = drafter()
    del config.num_target_layers
    assert misfits(config, target_config()) == []
