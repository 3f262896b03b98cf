"""Carry out a plan: one step after the other, each in a process of its own, all of it recorded."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from dflash.atomic import write_json
from dflash.errors import DFlashError, EnvironmentMismatch, StepFailed, UsageError, storage_error
from dflash.pipeline import lock, machines, report
from dflash.pipeline.events import EventLog, read_jsonl
from dflash.pipeline.files import write_text
from dflash.pipeline.kinds import DEFAULT_KINDS
from dflash.pipeline.launchers import config as launchers
from dflash.pipeline.memory import Memory
from dflash.pipeline.plan import Plan, PlannedStep, decide
from dflash.pipeline.process import Grace, StepProcess
from dflash.pipeline.record import Clock, Sender, lift, new_record, new_run
from dflash.pipeline.store import Attempt, Done, Store
from dflash.pipeline.view import View
from dflash.validation import plain

_TICK_S = 0.25


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its record, and the failure of the step that stopped it, or the signal."""

    record: dict[str, Any]
    failure: DFlashError | None = None
    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """0, the failed step's own status, or 128 + signal."""
        if self.signal:
            return 128 + self.signal
        return getattr(self.failure, "status", self.failure.exit_code) if self.failure else 0


def execute(plan: Plan, root: Path, view: View, kinds: str = DEFAULT_KINDS, sender: Sender | None = None) -> Outcome:
    """Run `plan` below `root`, on this machine. `kinds` is the import path from which step processes take their kinds;
    `sender` is who sent the run here, if it is somebody elsewhere.

    Raises UsageError when the plan is for another machine, BusyError, or StorageError for the run's own files.
    """
    if not plan.host.chain.is_local:
        name, chain = plan.host.name, str(plan.host.chain)
        what = f"this runs on local only, not on {name if name == chain else f'{name} ({chain})'}"
        raise UsageError(what, cure="send it there: dflash.pipeline.away, as ./inv train --host does")
    here = [each for each in plan.steps if each.status != "skip" and machines.works_here(each.step)]
    if wanting := [each.step.name for each in here if each.needs_gpu]:
        _require_gpu(wanting)
    try:
        folder = new_run(root, plan.pipeline.name, sender.run if sender else "")
        waits = (lambda text: view.note("run", text)) if sender and sender.waits else None
        try:
            with (
                lock.holding(root, folder.name, sender.owner if sender else "", waits) as descriptor,
                EventLog(folder / "events.jsonl") as log,
            ):
                return _Run(plan, root, folder, view, kinds, descriptor, log, sender).execute()
        except (DFlashError, OSError):
            _remove_if_unused(folder)
            raise
    except OSError as failure:
        raise storage_error(failure, failure.filename or root) from failure


def _require_gpu(steps: Sequence[str]) -> None:
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        what = f"{', '.join(steps)} need a GPU, and this machine has no /dev/nvidia0"
        raise EnvironmentMismatch(what, cure="run it on a GPU host, or set device: cpu for a small model")


def _remove_if_unused(folder: Path) -> None:
    """A run that never got the lock, or room for its first record, leaves no folder."""
    if not (folder / "record.json").exists():
        with contextlib.suppress(OSError):
            for file in ("events.jsonl", "plan.json"):
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
    clock: Clock = field(default_factory=Clock)
    memory: Memory = field(default_factory=Memory)
    done: dict[str, Done] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)

    def execute(self) -> Outcome:
        self.store = Store(self.root)
        write_json(self.folder / "plan.json", self.plan.as_json())
        self.record = new_record(self.folder.name, self.plan, self.root, self.sender)
        self._save()
        self.log.write("run_started", run=self.folder.name)
        failure: DFlashError | None = None
        with self._listening(), self.view:
            for planned, entry in zip(self.plan.steps, self.record["steps"], strict=True):
                try:
                    self._step(planned, entry)
                except DFlashError as error:
                    failure = error
                    entry.update(status="failed", error=str(error))
                except BaseException:
                    entry.update(status="failed", error="the runner itself failed")
                    self.record["status"] = "failed"
                    self._save()
                    raise
                if self.stopped and entry["status"] not in ("ok", "skipped"):
                    failure = None
                    entry.update(status="interrupted", error=None)
                self._finish_step(entry)
                if failure or self.stopped:
                    break
        return self._finish(failure)

    def _finish(self, failure: DFlashError | None) -> Outcome:
        whole = all(entry["status"] in ("ok", "skipped") for entry in self.record["steps"])
        stopped = self.stopped[0] if self.stopped and not whole else None
        self.record["status"] = "interrupted" if stopped else "failed" if failure else "ok"
        try:
            self._save()
            self.log.write("run_finished", status=self.record["status"], wall_s=self.record["wall_s"])
            write_text(self.folder / "report.html", report.page(self.record, self._metrics()))
        except (OSError, DFlashError):
            if not (failure or stopped):  # else that is what a person must hear of, not its consequence
                raise
        return Outcome(self.record, failure, stopped)

    def _step(self, planned: PlannedStep, entry: dict[str, Any]) -> None:
        step, kind = planned.step, planned.step.kind
        contents = {each: self.done[name].content for each, name in step.takes.items()}
        # What was planned may have become better: an input that was made again may be the same as before.
        decision = decide(step, planned.key, planned.fields, contents, self.store)
        entry.update(planned=decision.status, why=list(decision.why))
        if decision.status == "skip":
            found = self.store.look(kind.name, planned.key).done
            assert found is not None
            self.done[step.name] = found
            entry.update(status="skipped", seconds=0.0, result=found.result)
            lift(self.record, kind.name, found.result)
            return
        clock = Clock()
        entry["status"] = "running"
        self._save()
        self.log.write("step_started", step=step.name, key=planned.key, planned=decision.status, why=list(decision.why))
        self.view.started(step.name, decision.status, decision.why)
        attempt = Attempt(kind.name, planned.key, step.name, self.folder.name, contents)
        try:
            out = self.store.begin(attempt)
            self.memory.new_step()
            result = self._run(planned, out)
            if result is None:
                return
            done = self.store.finish(attempt, planned.fields, result, clock.seconds())
        except OSError as failure:
            raise storage_error(failure, failure.filename or self.store.work) from failure
        finally:
            entry.update(seconds=clock.seconds(), peak_rss_mb=self.memory.step_mb)
        self.done[step.name] = done
        entry.update(status="ok", result=result)
        lift(self.record, kind.name, result)

    def _run(self, planned: PlannedStep, out: Path) -> dict[str, Any] | None:
        """The step's result; None when it was stopped. Raises StepFailed."""
        name = planned.step.name
        spec, log = self.folder / "specs" / f"{name}.json", self.folder / "logs" / f"{name}.log"
        write_json(spec, self._spec(planned, out, log))
        result = error = None
        grace: Grace | None = None
        with StepProcess(spec, log, self.lock) as process:
            while not process.ended:
                for event in process.events(_TICK_S):
                    what = event.pop("event")
                    if what == "progress":
                        self.log.progress(name, **event)
                        self.view.progress(name, event["done"], event["total"], event["metrics"])
                    elif what == "note":
                        self.log.write("note", step=name, **event)
                        self.view.note(name, event["message"])
                    elif what == "result":
                        result = event["result"]
                    elif what == "error":
                        error = event
                self.memory.sample()
                if self.stopped and grace is None:
                    more = "" if self.sender else " (once more to kill it)"  # ./inv stop tells a runner once
                    self.view.note(name, f"told to stop; it saves what it has{more}")
                    process.stop()
                    grace = Grace()
                if grace and (grace.over or len(self.stopped) > 1):
                    return None  # leaving the process's context kills it
            status = process.wait()
        if status == 0 and isinstance(result, dict):
            return result
        if self.stopped:
            return None
        raise _failed(name, status, error, log)

    def _spec(self, planned: PlannedStep, out: Path, log: Path) -> dict[str, Any]:
        step = planned.step
        lender = self.plan.pipeline.step(step.borrows) if step.borrows else None
        takes = {kind: self.done[name] for kind, name in step.takes.items()}
        return {
            "kinds": self.kinds,
            "kind": step.kind.name,
            "config": plain(step.kind.config, step.config),
            "borrowed": lender and {"kind": lender.kind.name, "config": plain(lender.kind.config, lender.config)},
            "inputs": {kind: str(self.store.folder(kind, done.key)) for kind, done in takes.items()},
            "results": {kind: done.result for kind, done in takes.items()},
            "out": str(out),
            "root": str(self.root),
            "log": str(log),
            "launcher": launchers.to_json(step.launcher),
            "hosts": machines.to_json(self.plan.hosts),
            "host": step.host,
            "env": dict(step.env),
            "secrets": list(step.secrets),
        }

    def _finish_step(self, entry: Mapping[str, Any]) -> None:
        shown = {name: entry[name] for name in ("status", "seconds", "error", "result")}
        try:
            self._save()
            self.log.write("step_finished", step=entry["name"], **shown)
        except (OSError, DFlashError):
            if entry["status"] != "failed":
                raise
        self.view.finished(entry["name"], entry["status"], entry["seconds"], tuple(entry["why"]))

    def _save(self) -> None:
        self.memory.sample()
        self.record.update(wall_s=self.clock.seconds(), peak_rss_mb=self.memory.peak_mb)
        write_json(self.folder / "record.json", self.record)

    def _metrics(self) -> list[dict[str, Any]]:
        for step in self.plan.steps:
            path = self.store.folder(step.step.kind.name, step.key) / "metrics.jsonl"
            if step.step.kind.name == "train" and path.is_file():
                return read_jsonl(path)
        return []

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM are noted, and acted on between events: no step is cut in the middle of one."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.stopped.append(number)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _failed(step: str, status: int, error: Mapping[str, Any] | None, log: Path) -> StepFailed:
    if error:
        where = f"step {step}: {error['where']}" if error["where"] else f"step {step}"
        return StepFailed(error["what"], status=error["exit_code"], where=where, cure=error["cure"])
    if status < 0:
        name = signal.Signals(-status).name
        often = " (the kernel does that when memory runs out)" if -status == signal.SIGKILL else ""
        what = f"its process was killed by {name}{often}"
        return StepFailed(what, status=128 - status, where=f"step {step}", cure=f"its log is {log}")
    what = f"its process ended with status {status} and without a result"
    return StepFailed(what, status=status or 1, where=f"step {step}", cure=f"its log is {log}")
