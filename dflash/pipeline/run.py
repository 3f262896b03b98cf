"""Carry out a plan: one step after the other, each in a process of its own, all of it recorded.

A step that fails takes with it only those that need it: they are blocked, and the others run. The last steps
(`finally`) run when all others have ended, however they did: after a failure too, and after one signal, not after two.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash.atomic import write_json
from dflash.errors import DFlashError, UsageError, storage_error
from dflash.pipeline import leaks, lock, machines
from dflash.pipeline.attempts import Attempts, Job
from dflash.pipeline.belongings import files_here
from dflash.pipeline.events import EventLog
from dflash.pipeline.keys import require_source, require_unchanged
from dflash.pipeline.kinds import DEFAULT_KINDS
from dflash.pipeline.memory import Memory
from dflash.pipeline.plan import Plan, PlannedStep, decide
from dflash.pipeline.policy import IDLE, LEFT_OUT
from dflash.pipeline.provenance import lines, manifest
from dflash.pipeline.record import Clock, Sender, lift, new_record, new_run
from dflash.pipeline.redaction import Redaction, redaction_of, secrets_of
from dflash.pipeline.report.writing import write_report
from dflash.pipeline.request import FILE, planned
from dflash.pipeline.schema import Step
from dflash.pipeline.source import Origin, origin
from dflash.pipeline.spec import spec_of
from dflash.pipeline.stopping import Stops
from dflash.pipeline.store import Attempt, Done, Store
from dflash.pipeline.view import View
from dflash.pipeline.when import decide_when, host_facts, unmet_condition, unmet_need

_FINISHED = ("ok", "skipped")
_SETTLED = (*_FINISHED, LEFT_OUT)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its record, and the first failure of a step, or the signal that stopped it."""

    record: dict[str, Any]
    failure: DFlashError | None = None
    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """0, the failed step's own status, or 128 + signal."""
        if self.signal:
            return 128 + self.signal
        return getattr(self.failure, "status", self.failure.exit_code) if self.failure else 0


def execute(
    plan: Plan,
    root: Path,
    view: View,
    kinds: str = DEFAULT_KINDS,
    sender: Sender | None = None,
    request: Mapping[str, Any] | None = None,
) -> Outcome:
    """Run `plan` below `root`, on this machine. `kinds` is the import path from which step processes take their kinds;
    `sender` is who sent the run here, if it is somebody elsewhere; the run keeps its `request`, to be gone on with.

    Raises UsageError when the plan is for another machine or a secret is not set, BusyError, or StorageError for the
    run's own files.
    """
    if not plan.host.chain.is_local:
        name, chain = plan.host.name, str(plan.host.chain)
        what = f"this runs on local only, not on {name if name == chain else f'{name} ({chain})'}"
        raise UsageError(what, cure="send it there: dflash.pipeline.away, as ./inv train --host does")
    here = [each for each in plan.steps if each.status not in IDLE and machines.works_here(each.step)]
    machines.require_gpus({each.step.name: each.gpus for each in here})
    secrets_of([each.step for each in plan.steps if each.status not in IDLE], os.environ)
    source = None
    try:
        if not sender:  # who has looked before it came here
            data = files_here(plan.pipeline)
            source = origin(without=data)
            leaks.refuse_recorded(plan.pipeline, request["pipeline"]["text"] if request else None, source, data)
        folder = new_run(root, plan.pipeline.name, sender.run if sender else "")
        waits = (lambda text: view.note("run", text)) if sender and sender.waits else None
        try:
            with (
                lock.holding(root, folder.name, sender.owner if sender else "", waits) as descriptor,
                EventLog(folder / "events.jsonl") as log,
            ):
                if request and waits:  # for days, perhaps
                    plan = planned(request, root, folder)
                return _Run(plan, root, folder, view, kinds, descriptor, log, sender, request, source).execute()
        except BaseException:  # Ctrl-C too, while it waits for the lock
            _remove_if_unused(folder)
            raise
    except OSError as failure:
        raise storage_error(failure, failure.filename or root) from failure


def _remove_if_unused(folder: Path) -> None:
    """A run that never got the lock, or room for its first record, leaves no folder."""
    if not (folder / "record.json").exists():
        with contextlib.suppress(OSError):
            for file in ("events.jsonl", "plan.json", FILE):
                (folder / file).unlink(missing_ok=True)
            for inner in (folder / "logs", folder / "specs", folder):
                inner.rmdir()


@dataclass
class _Run:
    plan: Plan
    root: Path
    folder: Path
    view: View
    kinds: str
    lock: int
    log: EventLog
    sender: Sender | None = None
    request: Mapping[str, Any] | None = None
    source: Origin | None = None
    known: Mapping[str, Any] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    memory: Memory = field(default_factory=Memory)
    stops: Stops = field(default_factory=Stops)
    done: dict[str, Done] = field(default_factory=dict)
    failures: list[DFlashError] = field(default_factory=list)
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def execute(self) -> Outcome:
        self.store = Store(self.root)
        write_json(self.folder / "plan.json", self.plan.as_json())
        if self.request:
            write_json(self.folder / FILE, self.request)
        self.known = self._known()
        self.record = new_record(self.folder.name, self.plan, self.root, self.known["source"])
        self.record["resumes"] = self.request["resumes"] if self.request else None
        self._save()
        text = self.request["pipeline"]["text"] if self.request else None
        self.record["provenance"] = manifest.begun(self.plan, self.root, self.kinds, self.known, text)
        lines.keep(self.plan.pipeline, self.folder)
        self.attempts = self._attempts()
        self._save()
        self.log.write("run_started", run=self.folder.name)
        both = list(zip(self.plan.steps, self.record["steps"], strict=True))
        with self.stops.listening(), self.view, self.closing:
            self.view.begun([each.step.name for each in self.plan.steps])
            for planned, entry in both:
                if not planned.step.is_last and not self.stops.told:
                    self._step(planned, entry)
            for planned, entry in both:
                if planned.step.is_last and len(self.stops.signals) < 2:
                    self.stops.excused = len(self.stops.signals)
                    self._step(planned, entry)
        return self._finish()

    def _attempts(self) -> Attempts:
        hidden = frozenset(name for each in self.plan.steps for name in each.step.secrets)
        return Attempts(
            folder=self.folder,
            lock=self.lock,
            events=self.log,
            view=self.view,
            stops=self.stops,
            memory=self.memory,
            redaction=self._redaction(),
            hidden=hidden,
            save=self._save,
            closing=self.closing,
        )

    def _redaction(self) -> Redaction:
        return redaction_of([each.step for each in self.plan.steps], os.environ)

    def _finish(self) -> Outcome:
        whole = all(entry["status"] in _SETTLED for entry in self.record["steps"])
        stopped = self.stops.signals[0] if self.stops.signals and not whole else None
        failure = self.failures[0] if self.failures else None
        self.record["status"] = "interrupted" if stopped else "failed" if failure else "ok"
        try:
            self._save()
            self.log.write("run_finished", status=self.record["status"], wall_s=self.record["wall_s"])
            write_report(self.root, self.record)
        except (OSError, DFlashError):
            if not (failure or stopped):  # else that is what a person must hear of, not its consequence
                raise
        return Outcome(self.record, failure, stopped)

    def _step(self, planned: PlannedStep, entry: dict[str, Any]) -> None:
        """Run a step unless it is finished, blocked by what it needs or left out; its entry says which."""
        try:
            if missing := self._missing(planned):
                entry.update(status="blocked", why=missing)
            elif unmet := self._unmet(planned.step):
                entry.update(status=LEFT_OUT, why=[unmet])
            else:
                self._run(planned, entry)
        except DFlashError as error:
            entry.update(status="failed", error=str(error))
            if not self.stops.told:
                self.failures.append(error)
        except BaseException:
            entry.update(status="failed", error="the runner itself failed")
            self.record["status"] = "failed"
            self._save()
            raise
        if self.stops.told and entry["status"] not in (*_SETTLED, "blocked"):
            entry.update(status="interrupted", error=None)
        self._finish_step(entry)

    def _missing(self, planned: PlannedStep) -> list[str]:
        """Why a step can not run. A last step runs whatever became of others."""
        needed = () if planned.step.is_last else planned.step.needs
        ended = {entry["name"]: entry["status"] for entry in self.record["steps"]}
        return [f"it needs {name} ({ended[name]})" for name in needed if ended[name] not in _SETTLED]

    def _unmet(self, step: Step) -> str | None:
        """Why a step is left out."""
        steps = {entry["name"]: entry for entry in self.record["steps"]}
        left_out = {name for name, entry in steps.items() if entry["status"] == LEFT_OUT}
        if why := unmet_need(step, left_out):
            return why
        failed = any(entry["status"] == "failed" for entry in steps.values())
        facts = {"host": host_facts(self.plan.host), "steps": steps, "failed": failed}
        return None if decide_when(step, facts, self.plan.pipeline) else unmet_condition(step)

    def _run(self, planned: PlannedStep, entry: dict[str, Any]) -> None:
        step, kind = planned.step, planned.step.kind
        contents = {each: self.done[name].content for each, name in step.takes.items() if name in self.done}
        # What was planned may have become better: an input that was made again may be the same as before.
        decision = decide(step, planned.key, planned.fields, contents, self.store)
        entry.update(planned=decision.status, why=list(decision.why))
        found = self.store.look(kind.name, planned.key)
        if decision.status == "skip":
            assert found.done is not None
            self.done[step.name] = found.done
            entry.update(status="skipped", seconds=0.0, result=found.done.result)
            self._note_made(planned, found.done)
            return
        entry["resumes"] = found.started_by or None  # also where an output was damaged: its checkpoints may be whole
        if decision.status == "resume" and self.record["provenance"]["predecessor"] is None:
            self.record["provenance"]["predecessor"] = {"run": found.started_by, "how": "resumed"}
        require_source(step, planned.fields)  # before hours are spent on what can not be kept
        clock = Clock()
        entry.update(status="running", started=round(time.time(), 3))
        self.view.started(step.name, decision.status, decision.why)
        attempt = Attempt(kind.name, planned.key, step.name, self.folder.name, contents)
        try:
            out = self.store.begin(attempt)
            self.memory.new_step()
            log = self.folder / "logs" / f"{step.name}.log"
            told = {"key": planned.key, "planned": decision.status, "why": list(decision.why)}
            spec = spec_of(step, self.plan, self.kinds, self.store, self.done, out, log)
            job = Job(step, spec, out, log, told, self.plan.pipeline.file)
            result = self.attempts.result(job, entry["attempts"])
            if result is None:
                return
            require_source(step, planned.fields)
            require_unchanged(step, self.plan.pipeline, planned.fields, self.plan.project)
            done = self.store.finish(
                attempt, planned.fields, result, clock.seconds(), self.attempts.observed.get(step.name)
            )
        except OSError as failure:
            raise storage_error(failure, failure.filename or self.store.work) from failure
        finally:
            entry.update(seconds=clock.seconds(), peak_rss_mb=self.memory.step_mb)
        self.done[step.name] = done
        entry.update(status="ok", result=result)
        self._note_made(planned, done)

    def _known(self) -> dict[str, Any]:
        """What is known of the provenance, part by part, before anything is looked at. Whoever sent a run has its
        source; of one that is from here, it is kept."""
        known = dict((self.request or {}).get("known") or {})
        if before := (self.request or {}).get("resumes"):
            known.setdefault("predecessor", {"run": before, "how": "resumed"})
        if "source" not in known and self.sender:
            known["source"] = {"commit": self.sender.commit, "dirty": self.sender.dirty}
        elif "source" not in known and self.source:
            self.source.keep(self.folder)
            known["source"] = self.source.to_json()
        return known

    def _note_made(self, planned: PlannedStep, done: Done) -> None:
        lift(self.record, planned.step.kind.name, done.result)
        folder = self.store.folder(planned.step.kind.name, planned.key)
        manifest.add(self.record["provenance"], planned.step.name, done, folder)

    def _finish_step(self, entry: Mapping[str, Any]) -> None:
        shown = {name: entry[name] for name in ("status", "seconds", "error", "result")}
        try:
            self._save()
            self.log.write("step_finished", step=entry["name"], **shown)
        except (OSError, DFlashError):
            if not self.failures:
                raise
        self.view.finished(entry["name"], entry["status"], entry["seconds"], tuple(entry["why"]))

    def _save(self) -> None:
        self.memory.sample()
        self.record.update(wall_s=self.clock.seconds(), peak_rss_mb=self.memory.peak_mb)
        write_json(self.folder / "record.json", self.record)
