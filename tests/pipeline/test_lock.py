"""Who is at work in a root."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from dflash.errors import BusyError
from dflash.pipeline import lock


def test_a_lock_names_its_owner_is_waited_for_and_is_nothing_once_its_process_is_dead(tmp_path: Path):
    told: list[str] = []

    def waits(text: str) -> None:
        told.append(text)
        os.close(held)

    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "lock").write_text(f"{os.getpid()} run-1 ann@desk\n")
    assert lock.owner(tmp_path) is None
    held = os.open(tmp_path / "work" / "lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert lock.owner(tmp_path) == lock.Owner(os.getpid(), "run-1", "ann@desk")
    refused = pytest.raises(BusyError, match=rf"run run-1 of ann@desk \(process {os.getpid()}\) is at work here")
    with refused, lock.holding(tmp_path, "run-2"):
        pass
    with lock.holding(tmp_path, "run-2", "bob@desk", waits):
        assert str(lock.owner(tmp_path)) == f"run run-2 of bob@desk (process {os.getpid()})"
    assert told == [f"waits for run run-1 of ann@desk (process {os.getpid()})"]
