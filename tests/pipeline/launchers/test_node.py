"""What runs at a host ends when nobody holds it any more, and works on a step alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dflash.errors import BusyError
from dflash.pipeline.launchers.node import at_work, keep


def test_a_lease_is_as_old_as_its_last_change_seen_whatever_the_clock_says(tmp_path: Path):
    lease, told = tmp_path / "lease", []
    lease.touch()
    os.utime(lease, (1.0, 1.0))
    with subprocess.Popen(["sleep", "1.2"]) as process:
        assert keep(process, lease, 360.0, 100.0, lambda: told.append("stop")) == 0
    assert told == []


def test_a_lease_that_nobody_renews_or_that_is_gone_ends_the_work(tmp_path: Path):
    with subprocess.Popen(["sleep", "60"]) as process:
        assert keep(process, tmp_path / "lease", 0.5, 100.0, process.terminate) == 143


def test_who_comes_second_to_a_step_at_a_host_is_told_who_works_on_it(tmp_path: Path):
    lock = tmp_path / "hosted" / "train" / "k.lock"
    with at_work(lock, "a run of ann@desk in /home/ann/dflash"):
        said = r"k\.lock: a run of ann@desk in /home/ann/dflash is at work on this step here; wait for it, stop it"
        with pytest.raises(BusyError, match=said), at_work(lock, "a run of bob@desk in /home/bob/dflash"):
            pass
    with at_work(lock, "bob"):
        assert lock.read_text() == "bob"
