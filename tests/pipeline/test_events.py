"""The event log, and what a person sees of it."""

from __future__ import annotations

import io
import os
import pty
import time
from pathlib import Path

import pytest

from dflash.errors import DataError, StorageError
from dflash.pipeline.events import EventLog, last_heard, read_jsonl
from dflash.pipeline.view import Lines, clock, figures, view_for


def test_progress_is_written_once_a_second_and_the_last_always(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for done in range(1000):
            log.progress("train", done=done + 1, total=1000)
        log.write("step_finished", step="train")
    events = read_jsonl(path)
    assert [each.get("done") for each in events] == [1, 1000, None]


def test_a_torn_last_line_is_left_out(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": "\xc3\xa9"}\n{"c": "\xc3')
    assert read_jsonl(path) == [{"a": 1}, {"b": "é"}]


def test_a_run_was_last_heard_of_when_its_last_whole_event_was_written(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    assert last_heard(path) is None
    path.write_text('{"time": 1.5, "event": "a"}\n' * 10_000 + '{"time": 2.5, "event": "b"}\n{"time": 99')
    assert last_heard(path) == 2.5
    path.write_text("{}\n")
    assert last_heard(path) is None


@pytest.mark.parametrize("line", ["{torn", "[1]", "7"])
def test_any_other_bad_line_is_named(tmp_path: Path, line: str):
    path = tmp_path / "events.jsonl"
    path.write_text(f'{{"a": 1}}\n{line}\n{{"b": 2}}\n')
    with pytest.raises(DataError, match=r"events.jsonl:2: this line is not"):
        read_jsonl(path)


def test_a_log_that_can_not_be_appended_to_is_named(tmp_path: Path):
    log = EventLog(tmp_path / "events.jsonl")
    os.close(log._descriptor)
    log._descriptor = os.open("/dev/full", os.O_WRONLY)
    with log, pytest.raises(StorageError, match=r"events.jsonl: No space left"):
        log.write("note", step="train")


def test_half_a_line_on_a_disk_that_was_full_for_a_moment_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write = os.write
    with EventLog(tmp_path / "events.jsonl") as log:
        log.write("a")
        monkeypatch.setattr("dflash.pipeline.events.os.write", lambda descriptor, data: write(descriptor, data[:20]))
        with pytest.raises(StorageError, match="No space left"):
            log.write("b")
        monkeypatch.undo()
        log.write("c")
    assert [each["event"] for each in read_jsonl(tmp_path / "events.jsonl")] == ["a", "c"]


def test_figures_read_well():
    metrics = {"loss": 2.3456, "accuracy": [0.61, 0.4, 1.0], "tokens_per_s": 12345.6}
    assert figures(metrics) == "loss 2.346  accuracy .61 .40 1.00  12.3k tokens/s"


def test_times_read_well():
    assert [clock(seconds) for seconds in (0.44, 12.3, 187, 3723)] == ["0.4 s", "12 s", "3:07", "1:02:03"]


def test_off_a_terminal_there_are_few_lines():
    said = io.StringIO()
    with Lines(said, interval_s=60) as view:
        view.started("train", "resume", ["it was started before", "and more"])
        for done in range(1, 101):
            view.progress("train", done, 100, {"loss": 1.0 / done})
        view.finished("train", "ok", 12.0, [])
    lines = said.getvalue().splitlines()
    assert lines[0] == "train      goes on: it was started before (and 1 more)"
    assert lines[1].startswith("train      1/100  loss 1")
    assert lines[2].startswith("train      100/100  loss 0.01")
    assert lines[3:] == ["train      ok after 12 s"]


def test_on_a_terminal_there_is_a_bar_with_figures():
    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs, "w") as terminal, view_for(terminal) as view:
            view.started("train", "run", ["it has not been made before"])
            view.progress("train", 1, 10, {"loss": 2.5})
            time.sleep(0.01)
            view.progress("train", 5, 10, {"loss": 1.25, "accuracy": [0.5, 0.25]})
            view._live.refresh()
            view.finished("train", "ok", 3.0, [])
            view.finished("evaluate", "skipped", 0.0, ["nothing has changed"])
        said = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
    assert "5/10" in said
    assert "loss 1.25" in said
    assert "evaluate   skipped: nothing has changed" in said
