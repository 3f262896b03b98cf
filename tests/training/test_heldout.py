"""Measuring on held-out rows: each counts once, everybody knows when, and no weight is another for it."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash.errors import UsageError
from dflash.model.layout import load_draft
from dflash.model.loss import slot_decay
from dflash.model.target import Capture, load_target
from dflash.training.batches import MicroBatch, anchor_candidates
from dflash.training.config import Topology, TrainConfig
from dflash.training.heldout import HeldOut
from dflash.training.packing import Rows
from dflash.training.regions import labels
from dflash.training.trainer import Trainer
from tests.tiny import draft_eagerly
from tests.training.logged import read_metrics
from tests.training.small import CONFIG, Watching, held_out, rows, train
from tests.training.test_trainer import figures, same_bits

topologies = st.builds(Topology, targets=st.integers(1, 5), drafters=st.integers(1, 5))


def content(batch: MicroBatch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Tokens and anchors of the rows that have anchors."""
    pairs = zip(batch.tokens.tolist(), batch.anchors.tolist(), strict=True)
    return [(tuple(tokens), tuple(anchors)) for tokens, anchors in pairs if max(anchors) >= 0]


@given(topologies, st.integers(1, 5), st.integers(1, 9))
def test_what_each_target_makes_each_drafter_takes_in_order_and_none_is_left(
    topology: Topology, rows_each: int, batches: int
):
    config = replace(CONFIG, topology=topology, rows=rows_each, evaluate_batches=batches)
    heldout = HeldOut(held_out(), config)
    made = [(each.drafter, each) for rank in range(topology.targets) for each, _ in heldout.work_of(rank)]
    taken = [(rank, each) for rank in topology.drafter_ranks for each, _ in heldout.work_of(rank)]
    assert Counter(made) == Counter(taken)
    assert sorted(each.index for _, each in taken) == list(range(len(heldout)))
    assert len(heldout) <= batches
    for rank in range(topology.size):
        indices = [each.index for each, _ in heldout.work_of(rank)]
        assert indices == sorted(indices)


@pytest.mark.parametrize("rows_each", [1, 2, 3, 5])
def test_each_row_counts_once_whatever_fills_up_its_micro_batch(rows_each: int):
    heldout = HeldOut(held_out(), replace(CONFIG, rows=rows_each, topology=Topology(1, 1)))
    batches = [batch for _, batch in heldout.work_of(0)]
    assert {batch.tokens.shape for batch in batches} == {(rows_each, 32), (rows_each, 48)}
    counted = Counter(tokens for batch in batches for tokens, _ in content(batch))
    assert counted == Counter(tuple(row) for part in held_out().values() for row in part.tokens.tolist())


def test_the_same_is_asked_each_time_and_of_every_training():
    one, other = (HeldOut(held_out(), replace(CONFIG, seed=seed, topology=Topology(2, 2))) for seed in (0, 7))
    asked = [[content(batch) for _, batch in each.work_of(2)] for each in (one, one, other)]
    assert asked[0] == asked[1] == asked[2] != []


def test_evaluations_are_due_after_so_many_steps_and_at_the_last():
    def due(config: TrainConfig, packed: dict[int, Rows] | None = None) -> list[int]:
        heldout = HeldOut(held_out() if packed is None else packed, config)
        return [done for done in range(1, config.steps + 1) if heldout.due(done)]

    assert due(replace(CONFIG, evaluate_every=5)) == [5, 10, 12]
    assert due(replace(CONFIG, evaluate_every=100)) == [12]
    assert due(replace(CONFIG, evaluate_every=0)) == []
    assert due(CONFIG, packed={}) == []


def test_no_weight_is_another_for_having_been_measured(target_folder: Path, tmp_path: Path):
    train(target_folder, tmp_path / "measured", steps=6, evaluate_every=1, evaluate_batches=4)
    train(target_folder, tmp_path / "not", steps=6, evaluate_every=0)
    assert same_bits(tmp_path / "measured", tmp_path / "not")
    assert [row[:-1] for row in figures(tmp_path / "measured")] == [row[:-1] for row in figures(tmp_path / "not")]
    assert [bool(row.get("heldout")) for row in read_metrics(tmp_path / "not" / "metrics.jsonl")] == [False] * 6


def one_row(part: Rows, row: int) -> MicroBatch:
    """A row with an anchor wherever there can be one."""
    tokens, documents, positions, trainable = (
        each[row : row + 1] for each in (part.tokens.long(), part.documents.long(), part.positions, part.trainable)
    )
    anchors = anchor_candidates(trainable, documents)[0].nonzero().flatten()
    return MicroBatch(0, tokens, documents, positions.long(), trainable, anchors[None])


def test_the_figures_are_the_saved_drafters_over_all_held_out_rows(target_folder: Path, tmp_path: Path):
    """Row by row, and with all anchors there are, so that nothing is left to the draw."""
    watching = Watching()
    changes = {"anchors": 48, "rows": 2, "steps": 3, "topology": Topology(2, 3)}
    result = train(target_folder, tmp_path, watching, evaluate_every=2, **changes)
    draft, target = load_draft(tmp_path / "draft"), load_target(target_folder)
    capture = Capture(target, draft.target_layer_ids)
    loss, share, gained, blocks = 0.0, 0.0, 0, 0
    right, valid = torch.zeros(3), torch.zeros(3)
    for part in held_out().values():
        for row in range(len(part)):
            batch = one_row(part, row)
            wanted = labels(batch, slot_decay(4, 2.0), 4)
            features = capture.features(batch.tokens, batch.positions, batch.documents)
            outcome = draft_eagerly(draft, target, batch, features, wanted)
            loss, share = loss + float(outcome.loss.detach()), share + float(wanted.share)
            gained, blocks = gained + int(outcome.accepted.sum()), blocks + batch.anchors.shape[1]
            right += (outcome.correct & wanted.valid).sum(0)
            valid += wanted.valid.sum(0)
    assert result["heldout"]["loss"] == pytest.approx(loss / share, rel=1e-4)
    assert result["heldout"]["accept_len"] == pytest.approx(gained / blocks)
    assert result["heldout"]["accuracy"] == pytest.approx((right / valid).tolist())
    measured = [row.get("heldout") for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert measured[0] is None
    assert measured[2] == result["heldout"] != measured[1]
    assert [note for note in watching.notes if "step 3, held out: loss" in note] != []


def test_drafters_without_a_micro_batch_measure_in_lock_step(target_folder: Path, tmp_path: Path):
    result = train(target_folder, tmp_path, steps=2, evaluate_batches=1)
    assert result["heldout"]["accept_len"] >= 1


def test_a_set_without_held_out_rows_is_trained_on_and_that_is_said_once(target_folder: Path, tmp_path: Path):
    watching = Watching()
    result = Trainer(replace(CONFIG, steps=3), target_folder, rows(), watching).train(tmp_path)
    assert "heldout" not in result
    assert len([note for note in watching.notes if "no held-out rows" in note]) == 1


def test_how_often_is_measured_may_differ_from_a_checkpoints(target_folder: Path, tmp_path: Path):
    train(target_folder, tmp_path, steps=8, evaluate_every=0)
    shutil.rmtree(tmp_path / "scratch" / "checkpoints" / "step-00000008")
    assert train(target_folder, tmp_path, steps=8, evaluate_every=3, evaluate_batches=2)["resumed_at"] == 4
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl") if row.get("heldout")] == [6, 8]


def test_a_mask_token_in_held_out_rows_is_refused_by_row(target_folder: Path):
    packed = held_out()
    packed[48].tokens[1, 2] = CONFIG.draft.mask_token_id
    with pytest.raises(UsageError, match=r"mask token 260 is used by the data \(bucket 48, held-out row 1\)"):
        Trainer(CONFIG, target_folder, rows(), Watching(), heldout=packed)


@pytest.mark.parametrize("setting", [{"evaluate_every": -1}, {"evaluate_batches": 0}])
def test_a_setting_that_can_not_be_is_refused(setting: dict[str, int]):
    with pytest.raises(
        ValueError, match=r"evaluate_every must be at least 0, not -1|evaluate_batches must be at least 1, not 0"
    ):
        replace(CONFIG, **setting)
