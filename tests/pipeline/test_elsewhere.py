"""A step on another host than its run is a step as any other. The host is this machine, by another root."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash.errors import StepFailed, UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.pipeline.elsewhere import run_elsewhere
from dflash.pipeline.keys import HOME, observe
from dflash.pipeline.plan import make_plan
from dflash.pipeline.run import Outcome, execute
from dflash.pipeline.store import Store
from dflash.pipeline.view import Lines
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
    assert list((lab.root / "other" / "hosted").glob("*/*")) == []
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
    declared = {"launcher": None, "hosts": {}, "host": "other", "env": {}, "secrets": []}
    return {**spec, **places, **declared, "log": "the log"}


def at_other(root: Path, told: Told | None = None, **more: Any) -> dict[str, Any]:
    return run_elsewhere(spec_of(root, **more), other_of(root), KINDS["train"], told or Told())


def test_a_stop_reaches_it_and_what_it_saved_is_gone_on_with(lab: Lab):
    with pytest.raises(KeyboardInterrupt):
        at_other(lab.root, Told(lambda: os.kill(os.getpid(), signal.SIGINT)), steps=600, seconds=0.05)
    assert step_processes(lab.root / "other") == []
    saved = int((lab.root / "work" / "train" / "k" / "scratch" / "checkpoint").read_text())
    assert 3 <= saved < 600
    told = Told()
    assert at_other(lab.root, told, steps=saved + 2)["started_at"] == saved
    assert f"starts at {saved}" in told.notes


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


def test_secrets_do_not_leave_this_machine(lab: Lab):
    with pytest.raises(UsageError, match=r"host: other: a step on another host is given no secrets"):
        run_elsewhere(spec_of(lab.root) | {"secrets": ["TOKEN"]}, other_of(lab.root), KINDS["train"], Told())
