"""Two hosts for real: this machine and a network namespace, by sshd and a link that is cut while they train."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dflash.environments.installed import RECORD, packed
from dflash.hosts.failures import LostConnection
from dflash.pipeline.keys import HOME, lock_id
from tests.hosts.conftest import lab_sshd  # noqa: F401 - a fixture
from tests.lab.network import Link, link
from tests.lab.service import wait_until
from tests.lab.sshd import Sshd, sshd_behind
from tests.pipeline.launchers.test_several import SMALL, in_threads, workers
from tests.training.test_trainer import figures, same_bits

PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path
from dflash.errors import DFlashError
from dflash.hosts import jobs
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.pipeline.launchers import held, several
from dflash.pipeline.launchers.config import Torchrun
from tests.pipeline.launchers import test_several as t
from tests.training.small import Watching
folder, target, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
jobs.PATIENCE_S, held.LEASE_S, held.MARGIN_S, held.SAVE_S = 8.0, 1.0, 8.0, 3.0
job = t.job_of(folder, target, replace(t.SMALL, steps=60, checkpoint_every=5))
hosts = [Host("run", parse_chain("local"), str(job.root)), Host("far", parse_chain("ssh:lab-far"), str(folder / "far"))]
watching = Watching(lambda step: print(step, flush=True))
try:
    several.SeveralHosts(Torchrun(("run", "far"), port), hosts).train(job, watching)
except DFlashError as failure:
    print(failure, flush=True)
    sys.exit(failure.exit_code)
"""


@pytest.fixture
def way(lab_sshd: Sshd) -> Iterator[Link]:  # noqa: F811
    with link() as made, sshd_behind(made, lab_sshd):
        yield made


def environment_at(root: Path) -> None:
    """A generation of the lock that the tests run in, which is the tests' own environment by another name."""
    place = root / "envs" / "lab" / lock_id()[:16]
    (place / "bin").mkdir(parents=True)
    (place / RECORD).write_text(json.dumps({"lock": lock_id(), "python": "3", "made": "now", "files": packed({})}))
    python = place / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)


@pytest.mark.nightly
def test_a_cut_host_ends_the_training_and_it_goes_on_once_it_is_back(target_folder: Path, tmp_path: Path, way: Link):
    environment_at(tmp_path / "far")
    words = way.inside(sys.executable, "-B", "-c", PROGRAM, str(tmp_path), str(target_folder), "29417")
    with subprocess.Popen(words, cwd=HOME, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            if line.strip() == "12":
                break
        else:
            pytest.fail(launcher.communicate()[1])
        way.cut()
        try:
            said, _ = launcher.communicate(timeout=120)
        finally:
            way.mend()
    assert launcher.returncode == LostConnection.exit_code
    assert "ssh:lab-far: far is lost: " in said
    wait_until(lambda: not workers(tmp_path), "the end of what the cut host ran", 60)
    done = subprocess.run(words, cwd=HOME, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "run" / "work" / "train" / "k"
    assert int(done.stdout.split()[0]) > 10
    threads = in_threads(tmp_path, target_folder, replace(SMALL, steps=60))
    assert same_bits(out, threads)
    assert figures(out) == figures(threads)
    assert workers(tmp_path) == []
