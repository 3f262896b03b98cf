"""What a host of a training must have is looked for, and said to be missing, before anything starts."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from dflash.errors import EnvironmentMismatch, UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.pipeline.belongings import Belonging, parcel
from dflash.pipeline.keys import stamped_lock
from dflash.pipeline.launchers.config import Torchrun
from dflash.pipeline.launchers.launcher import TrainingJob
from dflash.pipeline.launchers.post import Post, bring, checkpoints_at, python_at
from dflash.pipeline.launchers.several import SeveralHosts
from tests.training.small import CONFIG, Watching


def test_a_host_without_this_environment_is_named_with_both(tmp_path: Path):
    """Its chain is asked over a connection that leads to this machine: only a chain that leaves it is looked into."""
    far = Host("gpu2", parse_chain("ssh:root@gpu2"), str(tmp_path))
    lock = stamped_lock()[:16]
    with reach(parse_chain("local")) as connection:
        said = rf"^gpu2 \(local\): it has no environment, and this training runs in one of lock {lock}; make it there"
        with pytest.raises(EnvironmentMismatch, match=said):
            python_at(connection, far)
        other = tmp_path / "envs" / "train" / ("0" * 16)
        other.mkdir(parents=True)
        assert python_at(connection, Host("me", parse_chain("local"))) == sys.executable


def test_a_python_that_is_no_environment_of_this_project_is_never_matched_with_a_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dflash.pipeline.launchers.post.stamped_lock", lambda: stamped_lock(tmp_path))
    far = Host("gpu2", parse_chain("ssh:root@gpu2"), str(tmp_path))
    with reach(parse_chain("local")) as connection:
        said = "gpu2: this Python is no environment of this project, so which one a host needs can not be told"
        with pytest.raises(EnvironmentMismatch, match=said):
            python_at(connection, far)
        assert python_at(connection, Host("me", parse_chain("local"))) == sys.executable


def test_data_is_sent_once_by_its_content(tmp_path: Path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    root = tmp_path / "far"
    post = Post(Host("far", parse_chain("local"), str(root)), "python", "", range(1), f"{root}/out", False)
    target = Belonging("target", str(tmp_path / "model"))
    progress = Watching()
    with reach(parse_chain("local")) as connection:
        for _ in range(2):
            paths = bring(connection, post, {target: parcel(target)}, progress)
            assert Path(paths["target"], "config.json").read_text() == "{}"
            assert paths["target"].startswith(f"{root}/data/")
        assert progress.notes == [f"sending {tmp_path / 'model'} to far"]
        assert checkpoints_at(connection, post) == []
        for name in ("step-00000003", "step-00000012", ".step-00000020"):
            (root / "out" / "scratch" / "checkpoints" / name).mkdir(parents=True)
        assert checkpoints_at(connection, post) == ["step-00000012", "step-00000003"]


def test_one_host_by_two_names_is_refused(tmp_path: Path):
    twice = [Host(name, parse_chain("ssh:gpu1"), gpus=8) for name in ("one", "other")]
    job = TrainingJob(CONFIG, *[tmp_path] * 6)
    with pytest.raises(UsageError, match=re.escape("launcher.hosts: one and other are one host; name each once")):
        SeveralHosts(Torchrun(("one", "other")), twice).train(job, Watching())
