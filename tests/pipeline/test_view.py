"""What a person sees on a terminal, and how steps wait beside a busy machine."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import time
from pathlib import Path

import pytest

from dflash.pipeline.process import calm
from dflash.pipeline.tail import Tail, last_lines
from dflash.pipeline.view import Bar, shortened, view_for


def read_all(terminal: int) -> str:
    """What a terminal was sent whose other end is closed: reading fails after it."""
    found = b""
    with contextlib.suppress(OSError):
        while piece := os.read(terminal, 1 << 16):
            found += piece
    return found.decode()


METRICS = {"loss": 4.688, "accuracy": [0.01] * 7, "accept_len": 1.01, "tokens_per_s": 3400.0, "lr": 2e-3}


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_on_a_narrow_terminal_the_figures_give_way_and_nothing_else(columns: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        bar = view_for(terminal)
        assert isinstance(bar, Bar)
        with bar:
            bar.begun(["data", "train"])
            bar.started("train", "run", ("it has not been made before",))
            bar.progress("train", 120, 400, METRICS)
            time.sleep(0.05)
            bar.progress("train", 121, 400, METRICS)
            bar.said("train", ["rank 0 is at work", "x" * 300])
            bar._live.refresh()
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read_all(ours))
    os.close(ours)
    drawn = next(line for line in re.split(r"[\r\n]+", said) if "121/400" in line)
    assert re.search(r"2/2 train +━+.*━ 121/400 \S+( s)? left", drawn)
    assert len(drawn.rstrip()) <= columns
    assert ("lr 0.002" in drawn) == (columns == 200)
    assert "loss 4.688" in drawn
    below = [line for line in re.split(r"[\r\n]+", said) if "rank 0 is at work" in line or "xxx" in line]
    assert len(below) >= 2
    assert all(len(line.rstrip()) <= columns for line in below)


def test_the_last_lines_of_a_log_are_as_a_terminal_has_them_in_the_end():
    text = "first\n\x1b[32mgreen\x1b[0m\n\n 10%\r 90%\r\nbell\x07\n"
    assert last_lines(text) == ["green", " 90%", "bell"]
    assert last_lines("one", most=5) == ["one"]
    assert last_lines("") == []


def test_a_log_is_looked_at_when_it_has_grown(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("of an attempt before\n")
    tail = Tail(log, interval_s=0.0)
    assert tail.news() == []
    with log.open("a") as file:
        file.write("a\nb\n")
    assert tail.news() == ["of an attempt before", "a", "b"]
    assert tail.news() == []
    assert Tail(tmp_path / "none", interval_s=0.0).news() == []
    with log.open("a") as file:
        file.write("e\n")
    assert Tail(log).news() == []  # it was looked at just now


def test_what_does_not_fit_ends_in_an_ellipsis():
    assert shortened("loss 4.688", 10) == "loss 4.688"
    assert shortened("loss 4.688", 6) == "loss …"
    assert shortened("loss 4.688", 0) == shortened("loss 4.688", -3) == ""


def test_threads_wait_asleep_unless_a_person_wants_it_otherwise():
    assert calm({"A": "b"}) == {"A": "b", "GOMP_SPINCOUNT": "1000"}
    for wish in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "ACTIVE"}):
        assert calm(wish) == wish
