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
from dflash.pipeline.launchers.post import Post, bring, checkpoints_at, python_at, take_usage
from dflash.pipeline.launchers.several import SeveralHosts, environment_of
from dflash.training.metriclog import MetricLog
from dflash.training.usage import USAGE, log_of, workers_in
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


def test_of_what_workers_noted_what_goes_further_is_kept_wherever_it_was(tmp_path: Path):
    """A host that was away may have rows of workers that have been on another host since."""
    out, root = tmp_path / "out", tmp_path / "far"
    post = Post(Host("far", parse_chain("local"), str(root)), "python", "", range(2, 4), f"{root}/out", False)
    for folder, rank, steps in ((out, 2, 50), (root / "out", 2, 20), (out, 3, 20), (root / "out", 3, 50)):
        log = MetricLog(log_of(folder / USAGE, rank), 0)
        for step in range(1, steps + 1):
            log.write({"step": step, "role": "drafter", "at": folder.parent.name})
        log.close()
    with reach(parse_chain("local")) as connection:
        take_usage(connection, post, out)
        assert not (root / "out" / USAGE).exists()
        take_usage(connection, post, out)  # again, of a host that has nothing any more
    two, three = workers_in(out / USAGE)
    assert (two.samples.last["step"], two.samples.last["at"]) == (50, tmp_path.name)
    assert (three.samples.last["step"], three.samples.last["at"]) == (50, "far")
    assert not (out / "scratch" / "brought").exists()


def test_one_host_by_two_names_is_refused(tmp_path: Path):
    twice = [Host(name, parse_chain("ssh:gpu1"), gpus=8) for name in ("one", "other")]
    job = TrainingJob(CONFIG, *[tmp_path] * 6)
    with pytest.raises(UsageError, match=re.escape("launcher.hosts: one and other are one host; name each once")):
        SeveralHosts(Torchrun(("one", "other")), twice).train(job, Watching())


def test_workers_have_the_steps_own_variables_and_of_the_others_those_of_the_network(monkeypatch: pytest.MonkeyPatch):
    post = Post(Host("far", parse_chain("ssh:far"), "/r"), "/r/envs/e/bin/python", "/r/source", range(1), "/o", False)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("PUSH_TOKEN", "t")
    own = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "GLOO_SOCKET_IFNAME": "eth1", "PYTHONPATH": "/x"}
    environ = environment_of(post, "/cache", "eth0", own)
    assert environ.items() >= {**own, "PYTHONPATH": "/r/source", "NCCL_DEBUG": "INFO"}.items()
    assert "PUSH_TOKEN" not in environ
