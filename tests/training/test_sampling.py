"""A long log in few buckets, which are right after any interruption."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.training.metriclog import MetricLog
from dflash.training.sampling import MOST, Sampler, Samples, flat, load_samples, samples_beside
from tests.training.logged import read_metrics


def row(step: int) -> dict:
    made = {"step": step, "loss": 5 / step, "accuracy": [0.5, 1 / step], "tokens_per_s": 100.0}
    return made | ({"heldout": {"loss": 6 / step}} if step % 100 == 0 else {})


def write(log: Path, first: int, last: int) -> None:
    """Train from step `first` to `last`."""
    opened = MetricLog(log, first)
    for step in range(first + 1, last + 1):
        opened.write(row(step))
    opened.close()


def agree(samples: Samples | None, steps: int) -> None:
    """The samples say what the rows of the steps 1 to `steps` do."""
    assert samples is not None
    assert len(samples.buckets) <= MOST
    assert samples.last == row(steps)
    assert samples.rows == steps
    edges = [(each.first, each.last) for each in samples.buckets]
    assert [first for first, _ in edges[1:]] == [last + 1 for _, last in edges[:-1]]
    assert (edges[0][0], edges[-1][1]) == (1, steps)
    for bucket in samples.buckets:
        losses = [5 / step for step in range(bucket.first, bucket.last + 1)]
        loss = bucket.figures["loss"]
        assert (loss.count, loss.least, loss.most) == (len(losses), min(losses), max(losses))
        assert loss.mean == pytest.approx(sum(losses) / len(losses))
    held = sum(each.figures["heldout.loss"].count for each in samples.buckets if "heldout.loss" in each.figures)
    assert held == steps // 100


@pytest.mark.parametrize("steps", [1, 7, MOST - 1, MOST, MOST + 1, 3 * MOST + 5])
def test_samples_say_what_all_rows_do_in_a_bounded_number_of_buckets(tmp_path: Path, steps: int):
    log = tmp_path / "metrics.jsonl"
    write(log, 0, steps)
    agree(load_samples(log), steps)
    kept = samples_beside(log).read_text().splitlines()
    assert steps - sum(json.loads(line)["rows"] for line in kept) < max(2, 2 * steps / MOST)
    samples_beside(log).unlink()
    agree(load_samples(log), steps)


def test_a_log_that_still_grows_is_read_to_its_last_row(tmp_path: Path):
    log = MetricLog(tmp_path / "metrics.jsonl", 0)
    for step in range(1, 2 * MOST):
        log.write(row(step))
        if step % 500 == 3:
            agree(load_samples(tmp_path / "metrics.jsonl"), step)
    log.close()


@pytest.mark.parametrize("checkpoint", [0, 1, 700, MOST + 1, 2100])
def test_a_resumed_training_goes_on_from_its_checkpoint_in_both(tmp_path: Path, checkpoint: int):
    log = tmp_path / "metrics.jsonl"
    write(log, 0, 2100)
    write(log, checkpoint, 2600)
    agree(load_samples(log), 2600)
    assert [each["step"] for each in read_metrics(log)] == list(range(1, 2601))


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 400), st.integers(0, 4000), st.integers(0, 60))
def test_what_a_killed_writer_leaves_of_either_file_is_made_good(
    tmp_path_factory: pytest.TempPathFactory, of_log: int, of_buckets: int, back: int
):
    log = tmp_path_factory.mktemp("killed") / "metrics.jsonl"
    write(log, 0, 1200)
    for path, cut in ((log, of_log), (samples_beside(log), of_buckets)):
        path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])
    whole = log.read_bytes().count(b"\n")
    agree(load_samples(log), whole)
    write(log, whole - back, 1300)
    agree(load_samples(log), 1300)


@pytest.mark.parametrize(
    "damage", ["{}\n", "[1]\n", "\0\0\0\n", '{"first": 1, "last": 2, "rows": 2, "end": 0, "figures": {}}\n']
)
def test_buckets_that_are_no_buckets_are_passed_over_for_the_rows(tmp_path: Path, damage: str):
    log = tmp_path / "metrics.jsonl"
    write(log, 0, 50)
    samples_beside(log).write_text(damage)
    agree(load_samples(log), 50)
    samples_beside(log).write_bytes(b"\xff\xfe\n")
    agree(load_samples(log), 50)


def test_buckets_of_another_log_are_passed_over(tmp_path: Path):
    log, other = tmp_path / "metrics.jsonl", tmp_path / "other.jsonl"
    write(log, 0, 50)
    write(other, 0, 2000)
    samples_beside(log).write_bytes(samples_beside(other).read_bytes())
    agree(load_samples(log), 50)


def test_a_log_without_a_whole_row_has_no_samples(tmp_path: Path):
    assert load_samples(tmp_path / "metrics.jsonl") is None
    (tmp_path / "metrics.jsonl").write_text('{"step": 1')
    assert load_samples(tmp_path / "metrics.jsonl") is None


def test_values_that_are_not_finite_are_in_no_bucket_and_hide_nothing():
    sampler = Sampler(most=2)
    for step, loss in enumerate((1.0, math.nan, math.inf, 3.0), 1):
        sampler.take({"step": step, "loss": loss, "skipped": True}, step)
    assert [(each.first, each.last, each.rows) for each in sampler.buckets] == [(1, 4, 4)]
    loss = sampler.buckets[0].figures["loss"]
    assert (loss.count, loss.mean, loss.least, loss.most) == (2, 2.0, 1.0, 3.0)
    assert sampler.buckets[0].figures.keys() == {"loss"}


def test_figures_are_named_by_their_place():
    made = {"step": 3, "accuracy": [0.5, None, 0.25], "heldout": {"loss": 2, "accuracy": [0.1]}}
    assert dict(flat(made)) == {"accuracy.0": 0.5, "accuracy.2": 0.25, "heldout.loss": 2, "heldout.accuracy.0": 0.1}
