"""The log of a training: all rows, and the same in few buckets."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest

from dflash.errors import StorageError
from dflash.training.metriclog import MetricLog
from dflash.training.sampling import MOST, load_samples
from tests.mounts import small_file_system
from tests.training.logged import read_metrics


def log_rows(path: Path, first: int, *steps: int) -> None:
    log = MetricLog(path, first)
    for step in steps:
        log.write({"step": step, "loss": step / 3})
    log.close()


def test_rows_are_read_as_they_were_written(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    log_rows(path, 0, 1, 2)
    assert read_metrics(path) == [{"step": 1, "loss": 1 / 3}, {"step": 2, "loss": 2 / 3}]


def test_a_row_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path):
    log = MetricLog(tmp_path / "metrics.jsonl", 0)
    log.write({"step": 1})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]
    log.close()


def test_the_folder_of_a_log_is_made_where_there_is_none(tmp_path: Path):
    path = tmp_path / "not" / "yet" / "metrics.jsonl"
    log_rows(path, 0, 1)
    assert [row["step"] for row in read_metrics(path)] == [1]


def test_a_resumed_training_drops_the_rows_after_its_checkpoint(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    log_rows(path, 0, 1, 2, 3, 4)
    log_rows(path, 2, 3)
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]
    log_rows(path, 0)
    assert read_metrics(path) == []


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_torn_last_line_is_passed_over_and_gone_after_the_next_start(tmp_path: Path, cut: int):
    path = tmp_path / "metrics.jsonl"
    log_rows(path, 0, 1, 2, 3)
    path.write_bytes(path.read_bytes()[:-cut])
    assert [row["step"] for row in read_metrics(path)] == [1, 2]
    log_rows(path, 2, 3)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


def test_a_disk_that_is_full_when_buckets_are_joined_leaves_the_rows_and_no_open_file(tmp_path: Path):
    with small_file_system(tmp_path / "disk", "1m") as disk:
        path = disk / "metrics.jsonl"
        log = MetricLog(path, 0)
        for step in range(1, MOST):
            log.write({"step": step, "loss": step / 3})
        room_is_left(disk / "other", 8192)  # for the row, and not for half of the buckets
        with pytest.raises(OSError, match="No space left"):
            log.write({"step": MOST, "loss": MOST / 3})
        log.close()
        assert not [
            each for each in Path("/proc/self/fd").iterdir() if each.exists() and each.resolve().is_relative_to(disk)
        ]
        assert [row["step"] for row in read_metrics(path)] == list(range(1, MOST + 1))
        found = load_samples(path)
        assert found is not None
        assert found.rows == MOST


def room_is_left(file: Path, size: int) -> None:
    """Fill the disk of a file but for so many bytes."""
    with file.open("wb", buffering=0) as other, contextlib.suppress(OSError):
        while other.write(bytes(4096)):
            pass
    os.truncate(file, file.stat().st_size - size)


def test_a_log_that_can_not_be_read_is_named(tmp_path: Path):
    with pytest.raises(StorageError, match=rf"^{tmp_path}: Is a directory"):
        load_samples(tmp_path)
