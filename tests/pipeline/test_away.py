"""A run that is sent elsewhere: what goes along, what is known of it here, and how it is followed, stopped, resumed."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import psutil
import pytest

from dflash.environments.lock import read_lock
from dflash.errors import BusyError, DataError, UsageError
from dflash.hosts import jobs
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.pipeline import lock
from dflash.pipeline.away import NotThere, Order, again, image_python, prepare
from dflash.pipeline.errand import Errand, load_errand
from dflash.pipeline.following import fetch, follow, stop
from dflash.pipeline.keys import HOME
from dflash.pipeline.launching import launch, owner
from dflash.pipeline.record import load_record
from dflash.pipeline.source import Origin, origin_of, snapshot
from dflash.pipeline.view import Lines
from tests.lab.service import wait_until
from tests.pipeline.lab import Lab, assert_hidden

SHORT = """\
name: short
steps:
  - name: target
    uses: target
    with: {corpus: corpus.txt}
  - name: train
    uses: train
    needs: [target]
"""
PUSH = """\
name: push
steps:
  - name: push
    uses: work
    secrets: [PUSH_TOKEN]
    with: {tells: PUSH_TOKEN, seconds: 1}
"""
KINDS = "tests.pipeline.sample_kinds:KINDS"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """This machine, with a root of its own, as if it were another."""
    return Host("there", parse_chain("local"), str(tmp_path / "far"))


@pytest.fixture
def short(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab.file.write_text(SHORT)
    (lab.root / "corpus.txt").write_text("text")
    monkeypatch.chdir(lab.root)
    return lab


def order(lab: Lab, host: Host, *overrides: str) -> Order:
    return Order(lab.load(*overrides), overrides, host, HOME / "envs" / "local", kinds=KINDS)


def told(errand: Errand, word: str) -> str:
    """The events of a run, once there is one with this word."""
    log = Path(errand.folder) / "events.jsonl"
    wait_until(lambda: log.exists() and word in log.read_text(), f"an event with {word}")
    return log.read_text()


def test_a_run_there_is_followed_and_comes_home_and_the_next_one_skips_it(
    short: Lab, host: Host, monkeypatch: pytest.MonkeyPatch
):
    said = io.StringIO()
    data: list[Path] = []

    def watched(without: list[Path]) -> tuple[bytes, Origin]:
        data.extend(without)
        return snapshot(without=without)

    monkeypatch.setattr("dflash.pipeline.away.snapshot", watched)
    with reach(host.chain) as there:
        with pytest.raises(NotThere, match=r"local: corpus\.txt has not been sent yet"):
            prepare(there, order(short, host), looks_only=True)
        assert [path.name for path in data] == ["corpus.txt"]
        ready = prepare(there, order(short, host))
        assert [each.status for each in ready.plan.steps] == ["run", "run"]
        (Path(str(host.root)) / "json.py").write_text("raise SystemExit('what lies in the root is not imported')")
        errand, folder = launch(there, ready, short.root)
        assert load_errand(short.root, errand.run) == errand
        assert load_record(short.root)["status"] == "running"  # as far as is known here
        job, failure = follow(errand, Lines(said))
        assert (job.code, failure) == (0, None)
        fetch(errand, job, folder)
        sent = json.loads((folder / "plan.json").read_text())["steps"][0]["config"]["corpus"]
        assert sent.startswith(f"{host.root}/data/")
        assert Path(sent).read_text() == "text"
        assert [each.status for each in prepare(there, order(short, host), looks_only=True).plan.steps] == [
            "skip",
            "skip",
        ]
    record = load_record(short.root)
    assert (record["id"], record["status"], record["host"]) == (folder.name, "ok", "there")
    assert record["commit"] == json.loads((folder / "source.json").read_text())["commit"]
    assert "train      ok after" in said.getvalue()
    assert (folder / "metrics.jsonl").read_text().count("\n") == 5
    assert "<svg" in (folder / "report.html").read_text()
    assert (folder / "logs" / "train.log").exists()


def test_a_stopped_run_is_gone_on_with_and_a_second_one_meanwhile_is_refused_by_name(
    short: Lab, host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    slow = order(short, host, "train.steps=600", "train.seconds=0.1")
    with reach(host.chain) as there:
        errand, folder = launch(there, prepare(there, slow), short.root)
        told(errand, '"done"')
        held = lock.owner(Path(errand.root))
        assert held
        assert os.readlink(f"/proc/{held.pid}/cwd") == errand.root  # a core dump in its source would change that
        ready = prepare(there, slow)
        with pytest.raises(BusyError, match=rf"run {errand.run} of .+@.+ \(process \d+\) is at work there"):
            launch(there, ready, short.root)
        job = stop(errand)
        assert job.code == 143
        fetch(errand, job, folder)
        assert load_record(short.root, errand.run)["status"] == "interrupted"
        with pytest.raises(UsageError, match=rf"environment .*/python of run {errand.run} is not there any more"):
            again(there, replace(errand, lock="0" * 16), origin_of(folder))
        ready = again(there, load_errand(short.root, errand.run), origin_of(folder))
        with monkeypatch.context() as typed:
            typed.setattr(jobs, "start", lambda *words: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                launch(there, ready, short.root / "other")
        (run,) = os.listdir(short.root / "other" / "runs")
        assert capsys.readouterr().err == f"\n./inv follow {run} says whether it has started\n"
        assert [each.status for each in ready.plan.steps] == ["skip", "resume"]
        second, place = launch(there, ready, short.root)
        assert (second.first, second.source) == (errand.run, errand.source)
        assert re.search(r"starts at [1-9]", told(second, "starts at"))
        assert stop(second).code == 143
    assert json.loads((place / "source.json").read_text()) == json.loads((folder / "source.json").read_text())


@pytest.mark.nightly
def test_two_hosts_are_at_work_at_once_each_on_its_own_run(short: Lab, host: Host):
    slow = ("train.steps=600", "train.seconds=0.1")
    hosts = [replace(host, name=name, root=f"{host.root}-{name}") for name in ("one", "other")]
    with reach(host.chain) as there:
        errands = [launch(there, prepare(there, order(short, each, *slow)), short.root)[0] for each in hosts]
        for errand in errands:
            told(errand, '"done"')
        holders = [lock.owner(Path(errand.root)) for errand in errands]
        assert [held and held.run for held in holders] == [errand.run for errand in errands]
        assert [stop(errand).code for errand in errands] == [143, 143]


@pytest.mark.nightly
def test_a_secret_of_a_run_there_is_in_no_file_and_no_command_line(
    short: Lab, host: Host, monkeypatch: pytest.MonkeyPatch
):
    short.file.write_text(PUSH)
    monkeypatch.delenv("PUSH_TOKEN", raising=False)
    secret, said = f"{token_hex(8)}/öäü", io.StringIO()
    with reach(host.chain) as there:  # its agent is begun without the secret
        assert prepare(there, order(short, host), looks_only=True).plan.steps  # to look takes no secret
        with pytest.raises(UsageError, match="step push: the secret PUSH_TOKEN is not set"):
            prepare(there, order(short, host))
        monkeypatch.setenv("PUSH_TOKEN", secret)
        errand, folder = launch(there, prepare(there, order(short, host)), short.root)
        log = Path(errand.folder) / "logs" / "push.log"
        wait_until(lambda: log.exists() and "***" in log.read_text(), "the step's first words")
        lines = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
        assert any(errand.job in line for line in lines)
        assert not any(secret[:16] in line for line in lines)
        job, failure = follow(errand, Lines(said))
        assert (job.code, failure) == (0, None)
        fetch(errand, job, folder)
        monkeypatch.delenv("PUSH_TOKEN")  # the step is finished there, and needs it no more
        notes: list[str] = []
        ready = prepare(there, order(short, host), notes.append)
        assert [each.status for each in ready.plan.steps] == ["skip"]
        assert notes == ["the secret PUSH_TOKEN is not set: unless step push is finished there, nothing will start"]
        done, _ = launch(there, ready, short.root)
        assert follow(done, Lines(io.StringIO()))[0].code == 0
    assert "it is ***" in said.getvalue()
    assert secret[:16] not in said.getvalue()
    assert (Path(str(host.root)) / "jobs" / errand.job / "spec").exists()
    for root in (short.root, Path(str(host.root))):
        assert_hidden(secret, root)


def test_where_source_came_from_is_told_or_the_note_is_damaged(tmp_path: Path):
    for text in ("{", "[]", "{}"):
        (tmp_path / "source.json").write_text(text)
        with pytest.raises(
            DataError, match=r"source\.json: is damaged, or its source\.patch is; \./inv train with the same options"
        ):
            origin_of(tmp_path)
    (tmp_path / "source.json").write_text('{"commit": "c0"}')
    (tmp_path / "source.patch").write_text("a patch")
    assert origin_of(tmp_path) == Origin("c0", b"a patch")


def test_who_has_no_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch):
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 54321")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert owner().split("@")[0] == str(os.getuid())


def test_an_images_environment_is_used_where_it_was_made_from_the_declared_lock(tmp_path: Path):
    declared = read_lock(HOME / "envs" / "local" / "requirements.lock").id
    with reach(parse_chain("local")) as connection:
        assert image_python(connection, declared[:16], str(tmp_path)) == ""
        (tmp_path / "dflash-stamp").write_text(f"python 3.12.3\nlock {declared}\nspec 0\nplace {tmp_path}\n")
        assert image_python(connection, declared[:16], str(tmp_path)) == f"{tmp_path}/bin/python"
        assert image_python(connection, "0" * 16, str(tmp_path)) == ""
