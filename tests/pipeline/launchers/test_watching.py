"""Jobs on several hosts are one: what they say is merged by rank, and when one ends all do. The jobs are real ones."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dflash.errors import DataError, StepFailed
from dflash.hosts import jobs
from dflash.hosts.chain import parse_chain
from dflash.hosts.command import Command
from dflash.hosts.connection import Connection
from dflash.hosts.failures import LostConnection
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.pipeline.keys import HOME
from dflash.pipeline.launchers import held, watching
from dflash.pipeline.launchers.post import Post
from dflash.pipeline.launchers.watching import Member, Watch
from tests.cgroups import little_memory
from tests.training.small import CONFIG, Watching

DIED = "E1130 torch/x.py:1] failed (exitcode: {}) local_rank: {} (pid: 7) of binary: python"


@pytest.fixture
def here() -> Iterator[Connection]:
    with reach(parse_chain("local")) as connection:
        yield connection


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "SETTLE_S", 0.3)
    monkeypatch.setattr(held, "GRACE_S", 1.0)


class Hosts:
    """Hosts `a`, `b`, …, each with four workers, whose jobs are shell scripts."""

    def __init__(self, connection: Connection, folder: Path) -> None:
        self._connection, self._folder = connection, folder
        self.members: list[Member] = []

    def start(self, script: str) -> None:
        number = len(self.members)
        host = Host("ab"[number], parse_chain("local"), str(self._folder / "ab"[number]))
        post = Post(host, "python", "", range(4 * number, 4 * number + 4), f"{host.root}/out", False)
        Path(post.own).mkdir(parents=True)
        variables = {"OWN": post.own}
        self.members.append(Member(post, jobs.start(self._connection, host, Command(["sh", "-c", script], variables))))

    def watch(self, progress: Watching | None = None) -> dict:
        try:
            return Watch(self.members, CONFIG, progress or Watching()).run()
        finally:
            assert [jobs.show(self._connection, each.post.host, each.job).state for each in self.members] == [
                "ended"
            ] * len(self.members)


@pytest.fixture
def hosts(here: Connection, tmp_path: Path) -> Hosts:
    return Hosts(here, tmp_path)


def say(by: int, kind: str, **fields: object) -> str:
    return f"echo '[{by}] {json.dumps({'dflash': kind, **fields})}'; "


def test_what_workers_tell_is_heard_and_the_rest_is_one_log_by_rank(hosts: Hosts, capfd: pytest.CaptureFixture[str]):
    hosts.start("echo '[0] a warning'; echo torchrun says; " + say(1, "note", message="warm"))
    hosts.start(say(5, "update", done=1, total=2, metrics={}) + say(5, "result", result={"step": 2}))
    progress = Watching()
    assert hosts.watch(progress) == {"step": 2}
    assert progress.notes == ["warm"]
    assert progress.steps == [(1, {})]
    assert sorted(capfd.readouterr().err.splitlines()) == ["[0] a warning", "[a] torchrun says"]


def test_one_workers_death_ends_all_and_its_host_rank_and_last_words_are_named(hosts: Hosts):
    hosts.start(f"echo '[1] Connection closed by peer'; echo '{DIED.format(1, 1)}'; exit 1")
    hosts.start(f"echo '[6] out of luck'; echo '{DIED.format(-9, 2)}'; sleep 0.2; exit 1")
    began = time.monotonic()
    said = r"^b: worker 6 \(drafter\) was killed by SIGKILL; its last lines: out of luck; run again to go on"
    with pytest.raises(StepFailed, match=said) as failure:
        hosts.watch()
    assert failure.value.status == 137
    assert time.monotonic() - began < 5


_TORCHRUN = """
import subprocess, sys
words = [sys.executable, "-S", "-c", "x = [bytearray(10_000_000) for _ in range(100)]"]
status = subprocess.run(words).returncode
print(f"E1130 torch/x.py:1] failed (exitcode: {status}) local_rank: 2 (pid: 7) of binary: python")
sys.exit(1)
"""
"""In place of torchrun, which alone takes more memory than its worker may have here."""


def test_a_worker_that_the_kernel_ends_for_want_of_memory_is_worth_an_attempt_with_more(hosts: Hosts, tmp_path: Path):
    place = tmp_path / "path" / "torch" / "distributed"
    place.mkdir(parents=True)
    for file, text in ((place.parent / "__init__.py", ""), (place / "__init__.py", ""), (place / "run.py", _TORCHRUN)):
        file.write_text(text)
    spec = {"lock": str(tmp_path / "lock"), "of": "ann", "folder": str(tmp_path / "own"), "request": {}}
    spec |= {"nodes": 2, "node": 1, "workers": 4, "address": "localhost", "port": 1, "patience_s": 60, "grace_s": 60}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    node = f"{sys.executable} -P -B -m dflash.pipeline.launchers.node {tmp_path}/spec.json"
    with little_memory(100_000_000) as group:
        hosts.start("sleep 60")
        hosts.start(f"echo $$ > {group}; export PYTHONPATH={tmp_path}/path:{HOME}; exec {node}")
        said = r"^b: worker 6 \(drafter\) was killed by SIGKILL; the kernel ended a process of this host for want of"
        with pytest.raises(StepFailed, match=said) as failure:
            hosts.watch()
    assert (failure.value.reason, failure.value.status) == ("memory", 137)


@pytest.mark.nightly
def test_a_host_that_ends_alone_takes_the_others_with_it(hosts: Hosts):
    hosts.start("sleep 60")
    hosts.start("echo 'the rendezvous failed'; exit 3")
    with pytest.raises(StepFailed, match=r"^b: torchrun ended with 3; its last lines: the rendezvous failed"):
        hosts.watch()


@pytest.mark.nightly
def test_what_a_worker_tells_of_its_failure_is_that_failure(hosts: Hosts):
    hosts.start(say(0, "failure", **{"class": "DataError"}, what="no such row", where="rows", cure="look") + "exit 4")
    hosts.start("sleep 60")
    with pytest.raises(DataError, match=r"^rows: no such row; look"):
        hosts.watch()


@pytest.mark.nightly
def test_workers_that_hang_are_ended_and_say_who_waits_for_whom(hosts: Hosts, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watching, "ANSWERS_S", 0.3)
    hosts.start(say(0, "hung", rank=0, waits_for="features of worker 5") + "sleep 60")
    hosts.start("sleep 60")
    with pytest.raises(StepFailed, match=r"the workers hang, for 600 s now: worker 0 waits for features of worker 5;"):
        hosts.watch()


def test_a_host_that_has_started_anew_is_lost(hosts: Hosts):
    hosts.start("true")
    watch = Watch(hosts.members, CONFIG, Watching())
    watch._take(hosts.members[0], jobs.Job(hosts.members[0].job, "lost"))
    with pytest.raises(
        LostConnection, match=r"^local: a is lost: it has started anew, or .*; once it is back, run again"
    ):
        watch._outcome()


def test_an_interrupt_asks_every_host_to_save_and_waits_for_it(hosts: Hosts, tmp_path: Path):
    for _ in range(2):
        hosts.start("while [ ! -e $OWN/stop ]; do sleep 0.05; done; sleep 0.3; echo saved > $OWN/saved; exit 1")
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        hosts.watch()
    timer.join()
    assert len(list(tmp_path.rglob("saved"))) == 2


def test_a_host_that_is_not_heard_of_any_more_is_lost_and_the_others_end(
    hosts: Hosts, here: Connection, monkeypatch: pytest.MonkeyPatch
):
    def cut(host: Host, identity: str, sink: object) -> None:
        raise LostConnection("nothing came from there any more", layer="ssh:b")

    follow = jobs.follow
    monkeypatch.setattr(jobs, "follow", lambda host, *words: (cut if host.name == "b" else follow)(host, *words))
    hosts.start("sleep 60")
    hosts.start("sleep 60")
    with pytest.raises(LostConnection, match=r"^ssh:b: b is lost: nothing came from there any more; once it is back"):
        Watch(hosts.members, CONFIG, Watching()).run()
    jobs.stop(here, hosts.members[1].post.host, hosts.members[1].job, grace=0.0)
    left = [each.as_dict(["cmdline"])["cmdline"] or [] for each in psutil.Process().children(recursive=True)]
    assert [words for words in left if "sleep" in words] == []
