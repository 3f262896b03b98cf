"""Encoding by several processes: the same documents in the same order, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from dflash.errors import DataError
from dflash.model.bytelevel import byte_tokenizer
from dflash.training import encoders
from dflash.training.encoders import WORTH, keep_by, processes_for
from dflash.training.encoding import Encoder
from dflash.training.records import Record


def records(count: int) -> Iterator[Record]:
    for number in range(count):
        said = "x" * (number % 90)
        if number % 3:
            yield Record(str(number), f"x:{number}", text=said)
        else:
            chat = [{"role": "user", "content": str(number)}, {"role": "assistant", "content": said}]
            yield Record(str(number), f"x:{number}", tuple(chat))


def bad_after(count: int) -> Iterator[Record]:
    yield from records(count)
    yield Record("bad", "mine.jsonl:7", text="with <|user|> in it")
    yield from records(1000)


def encoder() -> Encoder:
    tokenizer = byte_tokenizer()
    return Encoder(tokenizer, 64, mask=tokenizer.convert_tokens_to_ids("<|user|>"))


@pytest.mark.nightly
def test_several_processes_give_what_one_gives():
    encode = Encoder(byte_tokenizer(), 64)
    alone, together = (list(keep_by(processes, records(1000), encode, 8)) for processes in (1, 3))
    assert len(alone) == len(together) == 1000
    for (record, document, reason), (other_record, other, other_reason) in zip(alone, together, strict=True):
        assert (record, reason) == (other_record, other_reason)
        assert (document is None) == (other is None)
        if document and other:
            assert torch.equal(document.tokens, other.tokens)
            assert torch.equal(document.trainable, other.trainable)
            assert document.lost == other.lost
    assert multiprocessing.active_children() == []


@pytest.mark.nightly
def test_a_bad_record_is_named_from_another_process_and_the_processes_end():
    texts = (record for record in bad_after(1000) if record.text is not None)
    with pytest.raises(DataError, match=r"^mine.jsonl:7: the mask token 258 .* is in it; name a vocabulary row"):
        list(keep_by(2, texts, encoder(), 8))
    assert multiprocessing.active_children() == []


@pytest.mark.nightly
def test_a_process_that_is_killed_is_said_to_be():
    passing = keep_by(2, records(100_000), Encoder(byte_tokenizer(), 64), 8)
    next(passing)
    multiprocessing.active_children()[0].kill()
    with pytest.raises(DataError, match=r"a process that encodes was killed .*; encode with fewer: data.processes"):
        list(passing)


KILLED = """
import os, signal
from tests.training.test_encoders import records, byte_tokenizer, Encoder, keep_by, multiprocessing
if __name__ == "__main__":
    passing = keep_by(2, records(100_000), Encoder(byte_tokenizer(), 64), 8)
    next(passing)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.nightly
def test_processes_end_when_who_started_them_is_killed(tmp_path: Path):
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    home = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(home)}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, cwd=home, env=environment, stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    children = [int(word) for word in done.stdout.split()]
    assert len(children) == 2
    deadline = time.monotonic() + 30
    while any(map(psutil.pid_exists, children)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_one_process_starts_no_other():
    list(keep_by(1, records(10), Encoder(byte_tokenizer(), 64), 8))
    assert multiprocessing.active_children() == []


def test_only_a_large_set_is_worth_processes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encoders.os, "sched_getaffinity", lambda pid: set(range(128)))
    assert processes_for(WORTH - 1, 0) == 1
    assert processes_for(WORTH, 0) == 16
    assert processes_for(10, 3) == 3
    monkeypatch.setattr(encoders.os, "sched_getaffinity", lambda pid: {0, 1})
    assert processes_for(WORTH, 0) == 2
