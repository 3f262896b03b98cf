"""A step on another host than its run is a step as any other. The host is this machine, by another root."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash.errors import BusyError, OutOfMemory, StepFailed, UsageError
from dflash.hosts import jobs
from dflash.hosts.chain import parse_chain
from dflash.hosts.command import Command
from dflash.hosts.failures import HostError, LostConnection
from dflash.hosts.inventory import Host
from dflash.hosts.jobs import Job
from dflash.hosts.reach import reach
from dflash.pipeline import child, elsewhere, homecoming, machines
from dflash.pipeline.elsewhere import run_elsewhere
from dflash.pipeline.keys import HOME, observe
from dflash.pipeline.launchers import held
from dflash.pipeline.launchers.node import at_work
from dflash.pipeline.plan import make_plan
from dflash.pipeline.provenance.observing import Observing
from dflash.pipeline.run import Outcome, execute
from dflash.pipeline.steps import KINDS as STEPS
from dflash.pipeline.store import Store, note_part, parts_of
from dflash.pipeline.view import Lines
from tests.lab.service import wait_until
from tests.pipeline.lab import Lab, step_processes
from tests.pipeline.sample_kinds import KINDS

KINDS_AT = "tests.pipeline.sample_kinds:KINDS"


def other_of(root: Path) -> Host:
    return Host("other", parse_chain("local"), str(root / "other"))


def run(lab: Lab, *overrides: str) -> tuple[Outcome, list[str]]:
    """Run the sample with `target` and `train` on the other host; how it ended, and what was planned."""
    loaded = lab.load(*overrides)
    steps = [replace(step, host="other") if step.name in ("target", "train") else step for step in loaded.steps]
    pipeline, here = replace(loaded, steps=tuple(steps)), Host("local", parse_chain("local"))
    plan = make_plan(pipeline, here, observe(pipeline), Store(lab.root), {"other": other_of(lab.root)})
    said = io.StringIO()
    return execute(plan, lab.root, Lines(said), KINDS_AT), [each.status for each in plan.steps]


def test_a_step_on_a_host_makes_what_it_would_make_here_and_is_skipped_then(lab: Lab):
    (lab.root / "corpus.txt").write_text("text")
    words = (f"target.corpus={lab.root}/corpus.txt",)
    outcome, _ = run(lab, *words)
    assert outcome.exit_code == 0, outcome.failure
    made = lab.folder("train", *words)
    assert (made / "model.txt").read_text() == "HELLO"
    assert outcome.record["steps"][3]["result"]["target"] == {"characters": 5}
    assert (made / "metrics.jsonl").read_text().count("\n") == 5
    assert not list(made.glob("scratch/*"))
    assert [each.suffix for each in (lab.root / "other" / "hosted").glob("*/*")] == [".lock", ".lock"]
    assert len(list((lab.root / "other" / "data").iterdir())) == 2  # the corpus, and what target made
    assert run(lab, *words)[1] == ["run", "skip", "skip", "skip", "skip"]
    assert lab.statuses(*words)["train"] == "skip"  # where it ran is not in its key


class Told:
    """A stream of events that is kept, and can act on one."""

    def __init__(self, act: Any = None) -> None:
        self.events: list[dict[str, Any]] = []
        self._act = act

    def send(self, event: str, **values: Any) -> None:
        self.events.append({"event": event, **values})
        if self._act and event == "progress" and values["done"] == 3:
            self._act()
            self._act = None

    def note(self, message: str) -> None:
        self.send("note", message=message)

    @property
    def notes(self) -> list[str]:
        return [each["message"] for each in self.events if each["event"] == "note"]


def spec_of(root: Path, **more: Any) -> dict[str, Any]:
    """A training of the sample kinds, whose target has been made here."""
    target, out = root / "work" / "target" / "t", root / "work" / "train" / "k"
    for folder in (target, out):
        folder.mkdir(parents=True, exist_ok=True)
    (target / "text.txt").write_text("hello")
    (target / "done.json").write_text('{"outputs": [{"path": "text.txt", "sha256": "abc"}]}')
    config = {"steps": 5, "seconds": 0.0, "optimizer": {"lr": 1e-3, "betas": [0.9, 0.95]}, "devices": [], "gpus": 0}
    spec = {"kinds": KINDS_AT, "kind": "train", "config": {**config, "fault": ""} | more, "borrowed": None}
    places = {"inputs": {"target": str(target)}, "results": {"target": {}}, "out": str(out), "root": str(root)}
    declared = {
        "launcher": None,
        "hosts": {},
        "layout": [],
        "host": "other",
        "env": {},
        "secrets": [],
        "patterns": [],
        "project": str(HOME),
    }
    return {**spec, **places, **declared, "log": "the log"}


def at_other(root: Path, told: Told | None = None, **more: Any) -> dict[str, Any]:
    return run_elsewhere(spec_of(root, **more), other_of(root), KINDS["train"], told or Told())


def test_a_stop_reaches_it_and_what_it_saved_is_gone_on_with(lab: Lab):
    out = lab.root / "work" / "train" / "k"

    def begun() -> None:
        note_part(out, "a-run", 1)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        at_other(lab.root, Told(begun), steps=600, seconds=0.05)
    assert step_processes(lab.root / "other") == []
    assert parts_of(out) == {"a-run": 1}  # which is not known there
    assert [each.name for each in (lab.root / "other" / "hosted" / "train").iterdir()] == ["k.lock"]
    assert [each.name for each in (out / "scratch").iterdir()] == ["checkpoint"]  # nothing is to come home again
    saved = int((out / "scratch" / "checkpoint").read_text())
    assert 3 <= saved < 600
    told = Told()
    assert at_other(lab.root, told, steps=saved + 2)["started_at"] == saved
    assert f"starts at {saved}" in told.notes


def test_a_second_stop_ends_what_works_there_too(lab: Lab):
    """As the host is this machine, all that the step has started ends with it; what another has started does not."""
    program = "import sys; from pathlib import Path; from tests.pipeline import test_elsewhere as t; "
    program += "t.run(t.Lab(Path(sys.argv[1])), 'train.fault=deaf')"
    host, job = other_of(lab.root), jobs.new_id()
    with subprocess.Popen([sys.executable, "-B", "-c", program, str(lab.root)], cwd=HOME) as runner:
        folder = lab.root / "work" / "train"
        wait_until(lambda: [*folder.glob("*/scratch/elsewhere.json")], "the training there")
        (note,) = folder.glob("*/scratch/elsewhere.json")
        with reach(host.chain) as connection:
            jobs.start(connection, host, Command(["sleep", "60"]), job)
            time.sleep(1)  # it is deaf by then
            note.write_text(json.dumps({**json.loads(note.read_text()), "job": job}))
            runner.send_signal(signal.SIGINT)
            time.sleep(0.5)
            assert jobs.show(connection, host, job).state == "running"
            runner.send_signal(signal.SIGINT)
            runner.wait(timeout=30)
            assert jobs.show(connection, host, job).signal == signal.SIGTERM


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("data", 4, r"^other: corpus\.jsonl:3: this line is not JSON; remove it"),
        ("raise", 1, r"^other: RuntimeError: a bug in the step; the traceback is in the log"),
        ("kill", 137, r"^other: its process there ended with 137 and without a result; look at the end of its log"),
    ],
)
def test_its_failure_names_the_host(lab: Lab, fault: str, status: int, said: str):
    with pytest.raises(StepFailed, match=said) as failure:
        at_other(lab.root, fault=fault)
    assert failure.value.status == status


@pytest.mark.nightly
def test_what_a_killed_run_left_there_is_ended_and_comes_home_with_the_next(lab: Lab):
    program = "import sys; from pathlib import Path; from tests.pipeline import test_elsewhere as t; "
    program += "t.at_other(Path(sys.argv[1]), t.Told(lambda: print('goes', flush=True)), steps=600, seconds=0.05)"
    words = [sys.executable, "-B", "-c", program, str(lab.root)]
    with subprocess.Popen(words, cwd=HOME, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "goes\n"
        caller.kill()
    assert step_processes(lab.root / "other")
    told = Told()
    began = at_other(lab.root, told, steps=601)["started_at"]
    assert began >= 3
    assert step_processes(lab.root / "other") == []


def at_other_by(root: Path, program: str, told: Told, *patterns: str) -> Path:
    """Run a shell's program as a step at the other host; the step's folder here."""
    out = root / "work" / "command" / "k"
    out.mkdir(parents=True, exist_ok=True)
    (out / "of-before").write_text("x")
    own = {"kinds": "dflash.pipeline.steps:KINDS", "kind": "command", "config": {"argv": ["sh", "-c", program]}}
    own |= {"patterns": [*patterns], "project": str(root / "project")}
    spec = spec_of(root) | own | {"inputs": {}, "results": {}, "out": str(out)}
    run_elsewhere(spec, other_of(root), STEPS["command"], told)
    return out


def test_what_a_step_prints_is_never_taken_for_its_events(lab: Lab, capfd: pytest.CaptureFixture[str]):
    forged = ["""{"event": "result", "result": {}}""", """{"event": "progress"}""", """{"event": "note"}"""]
    told, program = Told(), "; ".join(f"echo '{line}'" for line in forged) + "; echo; exit 3"
    with pytest.raises(StepFailed, match=r"^other: 'sh' ended with status 3") as failure:
        at_other_by(lab.root, program, told)
    assert failure.value.status == 3
    assert told.events == []
    assert capfd.readouterr().err.splitlines()[:4] == [*forged, ""]


def test_relative_inputs_are_brought_there_and_lie_as_they_do_here(lab: Lab):
    for name in ("project/rows/a.txt", "beside/b.txt"):
        (lab.root / name).parent.mkdir(parents=True)
        (lab.root / name).write_text(f"{name}\n")
    told, program = Told(), 'cd "$DFLASH_PROJECT" && pwd && cat rows/*.txt ../beside/b.txt && ls dflash > /dev/null'
    out = at_other_by(lab.root, f"({program}) > said", told, "rows", "../beside/*")
    place, *said = (out / "said").read_text().splitlines()
    assert place.startswith(f"{lab.root}/other/inputs/")
    assert said == ["project/rows/a.txt", "beside/b.txt"]
    assert told.notes == ["sending rows to other", "sending ../beside/* to other"]


def test_that_inputs_can_not_be_laid_out_there_is_said_with_its_own_status(lab: Lab):
    (lab.root / "project").mkdir()
    (lab.root / "project" / "a.txt").touch()
    (lab.root / "other").mkdir()
    (lab.root / "other" / "inputs").touch()
    with pytest.raises(StepFailed, match=r"^other: \S*/other/inputs: File exists|Not a directory") as failure:
        at_other_by(lab.root, "true", Told(), "a.txt")
    assert failure.value.status == 5


def test_the_folder_here_is_as_the_one_there_and_what_is_told_is_of_the_process_there(lab: Lab):
    told = Told()
    out = at_other_by(lab.root, "printf torn; rm of-before; touch \"$(printf 'two\\nlines \\377')\"", told)
    assert [os.fsencode(each.name) for each in out.iterdir() if each.name != "scratch"] == [b"two\nlines \377"]
    (observed,) = told.events
    assert observed["event"] == "observed"
    assert "PYTHONPATH" in observed["observed"]["variables"]


def test_a_step_that_another_run_works_on_there_is_not_begun(lab: Lab):
    with (
        at_work(lab.root / "other" / "hosted" / "train" / "k.lock", "a run of ann@desk in /her/root"),
        pytest.raises(BusyError, match=r"^other: .*k\.lock: a run of ann@desk in /her/root is at work on this step"),
    ):
        at_other(lab.root)


def test_a_stop_while_it_is_started_ends_what_has_started(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    start = elsewhere._start

    def stopped(*words: Any) -> None:
        start(*words)
        raise KeyboardInterrupt

    monkeypatch.setattr(elsewhere, "_start", stopped)
    with pytest.raises(KeyboardInterrupt):
        at_other(lab.root, steps=600, seconds=0.05)
    assert step_processes(lab.root / "other") == []


def test_why_it_failed_there_is_why_it_failed(lab: Lab):
    error = {"what": "memory ran out", "where": None, "cure": None, "exit_code": 1, "reason": "memory"}
    assert isinstance(elsewhere._failure(other_of(lab.root), Job("j", "ended", 1), error), OutOfMemory)
    assert isinstance(elsewhere._failure(other_of(lab.root), Job("j", "lost"), None), LostConnection)


def test_what_is_at_a_host_that_is_gone_is_left_there_by_an_attempt_elsewhere(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    out, gone = lab.root / "work" / "train" / "k", Host("gpu1", parse_chain("ssh:root@127.0.0.1:1"), "/x")
    (out / "scratch").mkdir(parents=True)
    noted = {"out": "/x/out", "own": "/x/own", "job": "20260101T000000-0000", **machines.to_json({"host": gone})}
    homecoming.note_of(out).write_text(json.dumps(noted))

    def refused(host: Host, *words: object) -> bool:
        raise HostError("it refused the connection", layer=str(host.chain))

    monkeypatch.setattr(homecoming, "come_home", refused)
    monkeypatch.setattr(held, "end", lambda *words: None)
    with pytest.raises(HostError):
        homecoming.settle(out, gone, Told())
    told = Told()
    homecoming.settle(out, None, told)
    assert told.notes[0].startswith("what an attempt before has saved at gpu1 stays there: ssh:root@127.0.0.1:1")
    assert not homecoming.note_of(out).exists()


@pytest.mark.parametrize("launcher", [{"kind": "slurm"}, {"kind": "torchrun", "hosts": ["gpu1"]}, None])
def test_what_a_step_is_that_only_asks_others_to_train_is_not_told_as_what_trained(launcher: dict | None):
    class Observed(Observing):
        def observed(self, root: Path) -> dict[str, Any]:
            return {"libraries": {"libc": "1"}, "variables": {"A": "1"}, "torch": {"torch": "2"}, "flags": {"b": True}}

    told = Told()
    child._tell_observed(Observed(), {"root": "/r", "launcher": launcher}, told)
    observed = told.events[0]["observed"]
    assert observed["variables"] == {"A": "1"}
    assert [bool(observed[name]) for name in ("libraries", "torch", "flags")] == [launcher is None] * 3


def test_secrets_do_not_leave_this_machine(lab: Lab):
    with pytest.raises(UsageError, match=r"host: other: a step on another host is given no secrets"):
        run_elsewhere(spec_of(lab.root) | {"secrets": ["TOKEN"]}, other_of(lab.root), KINDS["train"], Told())
