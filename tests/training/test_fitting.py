"""What a worker needs is estimated, and of what does not fit the sizes that would."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import Qwen3Config

from dflash.model.draft import DFlashDraftModel
from dflash.training.config import DraftConfig, OptimizerConfig, TrainConfig
from dflash.training.drafts import draft_config
from dflash.training.fitting import (
    GIB,
    Memory,
    Needs,
    Sizes,
    corrected,
    drafter_cost,
    loading_cure,
    parameters,
    sizes_cure,
    smaller,
    target_cost,
)
from tests.tiny import new_draft

LARGE = TrainConfig(draft=DraftConfig(mask_token_id=151_669), rows=2, anchors=512, dtype="bfloat16")
LARGE_DRAFT = draft_config(
    Qwen3Config(
        vocab_size=151_936,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
    ),
    LARGE.draft,
)
SIZES, BUCKETS = Sizes(rows=2, length=3072, anchors=512, block=16), (1024, 2048, 3072)


def test_the_parameters_are_counted_as_the_model_has_them():
    draft = new_draft(layers=2, features=3)
    assert parameters(draft.config) == sum(each.numel() for each in draft.parameters())
    with torch.device("meta"):
        large = DFlashDraftModel(LARGE_DRAFT)
    assert parameters(LARGE_DRAFT) == sum(each.numel() for each in large.parameters())


def test_the_estimate_for_the_8b_targets_drafter_is_what_its_step_was_measured_to_take():
    """30.6 GiB: README, on one H200."""
    assert drafter_cost(LARGE, LARGE_DRAFT, tied=False).of(SIZES) / GIB == pytest.approx(30.6, rel=0.03)


@pytest.mark.parametrize(
    ("changes", "bytes_each"),
    [
        ({}, 2 + 2 + 8 + 4),
        ({"accumulate": 2}, 2 + 4 + 8 + 4),
        ({"optimizer": OptimizerConfig(name="muon")}, 2 + 2 + 4 + 4),
        ({"dtype": "float32"}, 4 + 4 + 8),
    ],
)
def test_weights_gradients_and_optimizer_state_are_counted(changes: dict, bytes_each: int):
    config = replace(LARGE, **changes)
    head = 151_936 * 4096 * (4 if config.dtype == "float32" else 2)
    for tied, ends in ((False, 2), (True, 1)):
        kept = drafter_cost(config, LARGE_DRAFT, tied=tied).kept
        assert kept == parameters(LARGE_DRAFT) * bytes_each + ends * head


ROUND = Needs(kept=10.0, once=2.0, token=1.0, drafted=0.5)


def test_a_peak_that_was_seen_corrects_all_but_what_is_kept():
    small = Sizes(rows=2, length=4, anchors=2, block=4)
    assert ROUND.of(small) == 10 + 2 + 2 * (4 + 4)
    seen = corrected(ROUND, small, {2: 1000.0, 4: 46.0})
    assert seen == Needs(kept=10.0, once=4.0, token=2.0, drafted=1.0)
    assert corrected(ROUND, small, {}) == ROUND


def needs(
    asked: Sizes, room: float, cost: Needs = ROUND, buckets: tuple[int, ...] = (128, 256, 512)
) -> dict[str, float]:
    return dict(smaller(cost, asked, buckets, room))


def test_of_each_change_that_is_enough_the_smallest_is_proposed():
    asked = Sizes(rows=4, length=512, anchors=64, block=16)
    assert ROUND.of(asked) == 12 + 4 * (512 + 512)
    assert needs(asked, room=3100) == {
        "--set train.rows=3": 12 + 3 * 1024,
        "--set train.anchors=32": 12 + 4 * (512 + 256),
        "--set 'data.buckets=[128,256]'": 12 + 4 * (256 + 512),
    }


def test_what_alone_is_not_enough_is_proposed_beside_a_single_row():
    asked = Sizes(rows=2, length=512, anchors=64, block=16)
    assert needs(asked, room=900) == {
        "--set train.rows=1 --set train.anchors=40": 12 + 512 + 320,
        "--set train.rows=1 --set 'data.buckets=[128,256]'": 12 + 256 + 512,
    }


def test_a_target_has_no_anchors_to_take_less_of_and_nothing_is_proposed_where_nothing_fits():
    asked = Sizes(rows=2, length=512, anchors=64, block=16)
    target = target_cost(LARGE, LARGE_DRAFT, kept=10.0)
    assert list(needs(asked, target.of(asked) - 1, target)) == ["--set train.rows=1", "--set 'data.buckets=[128,256]'"]
    assert needs(asked, room=20) == {}


def memory(total: float, others: float = 0.5, free: float = 0.1, hold: float | None = None) -> Memory:
    """So many GiB."""
    reserved = total - others - free
    return Memory(*(int(each * GIB) for each in (total, free, reserved, reserved if hold is None else hold)))


COST = drafter_cost(LARGE, LARGE_DRAFT, tied=False)


def test_the_sizes_that_fit_leave_a_margin():
    assert sizes_cure(COST, SIZES, BUCKETS, memory(28), dtype="bfloat16") == (
        "take sizes that are estimated to fit: --set train.rows=1 (25.0 GiB) or --set train.anchors=288 (26.1 GiB)"
    )


def test_sizes_that_failed_though_they_were_estimated_to_fit_are_estimated_to_need_all_there_was():
    said = sizes_cure(COST, SIZES, BUCKETS, memory(80), dtype="bfloat16")
    assert said == (
        "take sizes that are estimated to fit: --set train.rows=1 (51.5 GiB) or --set train.anchors=472 (75.4 GiB)"
    )


def test_a_bucket_that_failed_tells_of_the_longest():
    """The first bucket was too much: what fits must fit for the last."""
    said = sizes_cure(COST, replace(SIZES, length=1024), BUCKETS, memory(26), dtype="bfloat16")
    found = [float(part.split(" GiB")[0]) for part in said.split("(")[1:]]
    assert found
    assert max(found) < 0.95 * 25.5


def test_other_processes_and_memory_in_pieces_are_named_first():
    shared = sizes_cure(COST, SIZES, BUCKETS, memory(40, others=12), dtype="bfloat16")
    assert shared.startswith("end what else uses that GPU (12.0 GiB); or take sizes")
    pieces = sizes_cure(COST, SIZES, BUCKETS, memory(32, hold=25), wanted=2 * GIB, dtype="bfloat16")
    assert pieces.startswith(
        "set PYTORCH_ALLOC_CONF=expandable_segments:True, since what is free is in pieces; or take"
    )


def test_where_no_sizes_fit_it_says_what_is_needed_before_the_first_row():
    wide = replace(LARGE, dtype="float32")
    cost = drafter_cost(wide, LARGE_DRAFT, tied=False)
    said = sizes_cure(cost, SIZES, BUCKETS, memory(16), dtype="float32")
    assert said == (
        "no smaller sizes would fit, as 20.3 GiB are needed before the first row; or choose train.dtype=bfloat16, "
        "a smaller model, or GPUs with more memory"
    )
    assert loading_cure(cost.kept, memory(16, others=4), "bfloat16") == (
        "20.3 GiB are needed before the first row; end what else uses that GPU (4.0 GiB), or choose a smaller model, "
        "or GPUs with more memory"
    )
