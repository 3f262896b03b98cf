"""A small pipeline on disk, and ways to plan it, run it here, and run it as a process of its own."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from dflash.hosts.inventory import find_host
from dflash.pipeline.events import read_jsonl
from dflash.pipeline.keys import HOME, observe
from dflash.pipeline.plan import Plan, make_plan
from dflash.pipeline.redaction import Redaction
from dflash.pipeline.request import request_of
from dflash.pipeline.resuming import again, unfinished
from dflash.pipeline.run import Outcome, execute
from dflash.pipeline.schema import Pipeline, load_pipeline
from dflash.pipeline.store import Store
from dflash.pipeline.view import Lines
from tests.pipeline.sample_kinds import KINDS

SAMPLE_KINDS = "tests.pipeline.sample_kinds:KINDS"

SAMPLE = """\
name: sample
description: a small one
steps:
  - name: check
    uses: check
  - name: target
    uses: target
    with: {text: hello}
  - name: prewarm
    uses: prewarm
    needs: [check]
    with: {for_step: train}
  - name: train
    uses: train
    needs: [target, prewarm]
    with:
      steps: 5
      optimizer: {lr: 1e-3}
  - name: evaluate
    uses: evaluate
    needs: [train]
"""

WORK = """\
name: work
steps:
  - name: first
    uses: work
    with: {label: a}
  - name: second
    uses: work
    needs: [first]
    with: {label: b}
  - name: other
    uses: work
    with: {label: c}
finally:
  - name: clean
    uses: work
    with: {label: d}
"""
_RUNNER = """
import sys
from tests.pipeline.lab import Lab
from pathlib import Path
root, *words = sys.argv[1:]
outcome = getattr(Lab(Path(root)), words[0])(*words[1:])
print(outcome.failure or "", file=sys.stderr)
sys.exit(outcome.exit_code)
"""


@dataclass
class Lab:
    """A root folder with pipeline.yaml in it."""

    root: Path

    @property
    def file(self) -> Path:
        return self.root / "pipeline.yaml"

    def load(self, *overrides: str) -> Pipeline:
        return load_pipeline(self.file, KINDS, overrides)

    def declare(self, **steps: dict[str, Any]) -> None:
        """Add to what the file says of steps."""
        document = yaml.safe_load(self.file.read_text())
        for step in (*document["steps"], *document.get("finally", [])):
            step.update(steps.get(step["name"], {}))
        self.file.write_text(yaml.safe_dump(document, sort_keys=False))

    def plan(self, *overrides: str, host: str = "local") -> Plan:
        loaded, where = self.load(*overrides), find_host(host, self.root / "hosts.yaml")
        seen = observe(loaded) if where.chain.is_local else None
        return make_plan(loaded, where, seen, Store(self.root))

    def statuses(self, *overrides: str) -> dict[str, str]:
        return {each.step.name: each.status for each in self.plan(*overrides).steps}

    def why(self, step: str, *overrides: str) -> tuple[str, ...]:
        return next(each.why for each in self.plan(*overrides).steps if each.step.name == step)

    def run(self, *overrides: str) -> Outcome:
        plan = self.plan(*overrides)
        return self._execute(plan, request_of(plan.pipeline, overrides, plan.host, SAMPLE_KINDS, self.root))

    def resume(self, run: str = "") -> Outcome:
        """Go on with a run; the newest that did not end well without its id."""
        return self._execute(*again(self.root, run or unfinished(self.root)))

    def _execute(self, plan: Plan, request: dict[str, Any]) -> Outcome:
        self.said = io.StringIO()
        return execute(plan, self.root, Lines(self.said), SAMPLE_KINDS, None, request)

    def start(self, *overrides: str, verb: str = "run", project: Path = HOME) -> subprocess.Popen[str]:
        """The same in a process of its own, by the source in the folder `project`."""
        return subprocess.Popen(
            [sys.executable, "-c", _RUNNER, str(self.root), verb, *overrides],
            cwd=project,
            stderr=subprocess.PIPE,
            text=True,
        )

    def folder(self, step: str, *overrides: str) -> Path:
        each = next(each for each in self.plan(*overrides).steps if each.step.name == step)
        return Store(self.root).folder(each.step.kind.name, each.key)

    def runs(self) -> list[Path]:
        return sorted((self.root / "runs").iterdir())

    def await_event(self, event: str, step: str, within: float = 20.0) -> Path:
        """Wait until the newest run has written this event about a step; the run's folder."""
        until = time.monotonic() + within
        while time.monotonic() < until:
            for log in sorted((self.root / "runs").glob("*/events.jsonl"))[-1:]:
                if any(each["event"] == event and each.get("step") == step for each in read_jsonl(log)):
                    return log.parent
            time.sleep(0.02)
        raise AssertionError(f"no {event} of {step} within {within} s")


def step_processes(root: Path) -> list[psutil.Process]:
    """Processes that belong to steps below `root`: keepers, steps, and what a step started."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = str(root) in " ".join(process.cmdline()) or _out_of(process) == str(root)
            if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def none_left(root: Path, within: float = 5.0) -> bool:
    """Whether all of them end soon: a killed runner's keeper needs a moment to see it."""
    until = time.monotonic() + within
    while step_processes(root):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def assert_hidden(secret: str, below: Path) -> None:
    """Every byte of every file is looked at."""
    files = [path for path in below.rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        content = path.read_bytes()
        assert not [form for form in Redaction([secret])._forms if form in content], path


def _out_of(process: psutil.Process) -> str | None:
    return process.environ().get("DFLASH_TEST_ROOT")


def end(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> int:
    """Send a signal and wait for the end; the return code."""
    process.send_signal(number)
    process.communicate(timeout=40)
    return process.returncode
