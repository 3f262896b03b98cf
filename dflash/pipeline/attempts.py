"""The attempts at a step: each a process of its own, held to the step's limits, noted in the record and told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash.errors import DFlashError, StepFailed, storage_error
from dflash.pipeline.events import EventLog
from dflash.pipeline.leaks import named_by, notes_of_outputs
from dflash.pipeline.memory import Memory, oom_kills
from dflash.pipeline.policy import Limits, Retry
from dflash.pipeline.process import Forks, Grace, StepProcess
from dflash.pipeline.redaction import Redaction, secrets_of, set_of
from dflash.pipeline.retrying import AttemptFailed, tried
from dflash.pipeline.schema import Step
from dflash.pipeline.stopping import GRACE_S, Stopped, Stops, limits_after
from dflash.pipeline.store import note_part, outputs_in
from dflash.pipeline.tail import Tail
from dflash.pipeline.view import View, clock

_TICK_S = 0.25
_TIMED_OUT = 124
"""The exit status of what took too long, as timeout(1) has it."""


@dataclass(frozen=True)
class Job:
    """What an attempt takes: the step, what its process is told, and where its output and log go; `told` is what its
    start is told with, `file` the pipeline's, where its limits are."""

    step: Step
    spec: Mapping[str, Any]
    out: Path
    log: Path
    told: Mapping[str, Any]
    file: str


@dataclass
class Attempts:
    """Makes the attempts of one run, in its folder. `hidden` are the names of all secrets, which only the steps that
    name them are given; `save` writes the record; `closing` is left when the run ends. `observed` is what each step's
    process saw of itself; `begun` are the steps that told of progress."""

    folder: Path
    lock: int
    events: EventLog
    view: View
    stops: Stops
    memory: Memory
    redaction: Redaction
    hidden: frozenset[str]
    save: Callable[[], object]
    closing: contextlib.ExitStack
    shared: Forks | None = None
    observed: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)

    def result(self, job: Job, noted: list[dict[str, Any]]) -> dict[str, Any] | None:
        """The step's result, after as many attempts as its policy allows; None when it was stopped. Each attempt is
        added to `noted`. Raises StepFailed with what the last one failed of."""
        step = job.step

        def once() -> dict[str, Any] | None:
            return self._noted(job, noted)

        def tell(failure: AttemptFailed, wait_s: float) -> None:
            self.save()
            more = {"wait_s": round(wait_s, 3), "error": str(failure.error)}
            self.events.write("attempt_failed", step=step.name, attempt=len(noted), reason=failure.reason, **more)
            number = f"attempt {len(noted)} of {step.retry.attempts}"
            self.view.note(step.name, f"{number} failed, tries again in {clock(wait_s)}: {failure.error}")

        try:
            return tried(Retry() if self.stops.excused else step.retry, once, self.stops.sleep, tell)
        except AttemptFailed as failure:
            raise failure.error from None
        except Stopped:
            return None

    def _noted(self, job: Job, noted: list[dict[str, Any]]) -> dict[str, Any] | None:
        """One attempt. It reads as interrupted until it has ended, as it must if the runner is killed meanwhile."""
        entry = {"number": len(noted) + 1, "started": round(time.time(), 3), "seconds": 0.0, "status": "interrupted"}
        entry |= {"reason": None, "exit_code": None, "error": None}
        noted.append(entry)
        self.save()
        self.events.write("step_started", step=job.step.name, attempt=entry["number"], **job.told)
        begun = time.monotonic()
        try:
            result = self._once(job)
        except AttemptFailed as failure:
            entry.update(
                status="failed", reason=failure.reason, exit_code=failure.error.status, error=str(failure.error)
            )
            raise
        except (DFlashError, OSError) as failure:  # of the runner's own files, or of a process that can not be started
            error = storage_error(failure) if isinstance(failure, OSError) else failure
            entry.update(status="failed", reason="exit", exit_code=error.exit_code, error=str(error))
            raise
        finally:
            entry["seconds"] = round(time.monotonic() - begun, 3)
        if result is not None:
            entry.update(status="ok", exit_code=0)
        return result

    def _once(self, job: Job) -> dict[str, Any] | None:
        name = job.step.name
        spec = self.folder / "specs" / f"{name}.json"
        spec.write_text(json.dumps(job.spec, indent=1), encoding="utf-8")  # for the process that is started now
        result = error = passed = None
        grace: Grace | None = None
        limits = limits_after(job.step.limits) if self.stops.excused else job.step.limits
        kills, watch, tail = oom_kills(), Watch(limits, job.log), Tail(job.log)
        if self.stops.excused:
            most = clock(limits.timeout_s or GRACE_S)
            self.view.note(name, f"has {most}, as the run was told to stop (once more to kill it)")
        with self._forks(job) as forks, StepProcess(forks, spec, job.log, self.lock, self._hides(job.step)) as process:
            while not process.ended:
                for event in process.events(_TICK_S):
                    watch.heard()
                    what = event.pop("event")
                    if what == "progress":
                        if name not in self.begun:
                            note_part(job.out, self.folder.name, event["done"])
                            self.begun.add(name)
                        self.events.progress(name, **event)
                        self.view.progress(name, event["done"], event["total"], event["metrics"])
                    elif what == "note":
                        self.events.write("note", step=name, **event)
                        self.view.note(name, event["message"])
                    elif what == "observed":
                        self.observed[name] = event["observed"]
                    elif what == "result":
                        result = event["result"]
                    elif what == "error":
                        error = event
                self.memory.sample()
                if lines := tail.news():
                    self.view.said(name, lines)
                passed = passed or watch.passed()
                if grace is None and (passed or self.stops.told):
                    more = "" if passed else " (once more to kill it)"
                    why = f"has passed its {_LIMITS[passed]}, and is" if passed else "is"
                    self.view.note(name, f"{why} told to stop; it saves what it has{more}")
                    process.stop()
                    grace = Grace(GRACE_S)
                if grace and (grace.over or self.stops.told_again):
                    break  # leaving the process's context kills it
            is_killed = not process.ended
            status = -signal.SIGKILL if is_killed else process.wait()
        if is_killed and job.step.host:
            from dflash.pipeline.homecoming import end_now  # takes longer than a step does that is here

            end_now(job.out)
        if status == 0 and isinstance(result, dict):
            _require_outputs(job)
            self._look_for_secrets(job)
            return result  # after a stop that came since, too: it is finished
        if self.stops.told:
            return None
        if passed:
            raise AttemptFailed(passed, _too_long(job, passed, limits))
        if oom_kills() > kills:
            raise AttemptFailed("memory", _failed(name, status, error, job.log, out_of_memory=True))
        raise AttemptFailed(error["reason"] if error else "exit", _failed(name, status, error, job.log))

    def _look_for_secrets(self, job: Job) -> None:
        """In what it made, until the run is told to stop."""
        secrets = set_of(job.step.secrets, os.environ)
        if name := named_by(secrets, job.out):
            what, cure = f"an output is called by secret {name}", f"its folder is {job.out}; give it another name"
            raise AttemptFailed("exit", StepFailed(what, status=1, where=f"step {job.step.name}", cure=cure))
        for line in notes_of_outputs(secrets, job.out, lambda: self.stops.told):
            said = self.redaction.value(line)
            self.events.write("note", step=job.step.name, message=said)
            self.view.note(job.step.name, said)

    @contextlib.contextmanager
    def _forks(self, job: Job) -> Iterator[Forks]:
        """What the step's process is forked from: one for all steps, but for those that have variables of their own. A
        secret is for the steps that name it alone: another's log, which is not redacted, can then not show it."""
        shown = {name: value for name, value in os.environ.items() if name not in self.hidden}
        own = {**job.step.env, **secrets_of([job.step], os.environ)}
        if own:
            with Forks({**shown, **own}, job.spec["kinds"], self.folder, job.log) as forks:
                yield forks
            return
        if self.shared is None or self.shared.is_over:
            self.shared = self.closing.enter_context(Forks(shown, job.spec["kinds"], self.folder, job.log))
        yield self.shared

    def _hides(self, step: Step) -> Redaction:
        return self.redaction if step.secrets else Redaction()


_LIMITS = {"timeout": "timeout", "no_output": "no_output_timeout"}
"""The keys of a step in a pipeline's file, by the reason of an attempt that passed them."""


class Watch:
    """An attempt's limits. What it says is told to `heard`; the growth of its log is looked for."""

    def __init__(self, limits: Limits, log: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._log, self._clock = limits, log, clock
        self._begun = self._heard = clock()
        self._size = self._log_size()

    def heard(self) -> None:
        """It said something."""
        self._heard = self._clock()

    def passed(self) -> str | None:
        """The reason of policy.REASONS why it is to be ended, if it is."""
        now, limits = self._clock(), self._limits
        if limits.timeout_s is not None and now - self._begun > limits.timeout_s:
            return "timeout"
        if limits.no_output_s is None:
            return None
        if (size := self._log_size()) != self._size:
            self._heard, self._size = now, size
        return "no_output" if now - self._heard > limits.no_output_s else None

    def _log_size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0


def _require_outputs(job: Job) -> None:
    if not job.step.outputs:
        return
    made = {place for _, path, _ in outputs_in(job.out) for place in (path, *path.parents)}
    for pattern in job.step.outputs:
        if not made.intersection(job.out.glob(pattern)):
            where = f"step {job.step.name}"
            cure = f"its folder is {job.out}; its outputs are in {job.file}"
            raise AttemptFailed("exit", StepFailed(f"it made no {pattern}", status=1, where=where, cure=cure))


def _too_long(job: Job, passed: str, limits: Limits) -> StepFailed:
    if passed == "timeout":
        what = f"it took longer than its timeout, {clock(limits.timeout_s or 0)}"
    else:
        what = f"it said nothing for longer than its no_output_timeout, {clock(limits.no_output_s or 0)}"
    is_declared = passed == "no_output" or job.step.limits.timeout_s
    where = "the limit is in" if is_declared else "after a stop it has no longer unless it has a timeout in"
    cure = f"its log is {job.log}; {where} {job.file}"
    return StepFailed(what, status=_TIMED_OUT, where=f"step {job.step.name}", cure=cure)


def _failed(
    step: str, status: int, error: Mapping[str, Any] | None, log: Path, *, out_of_memory: bool = False
) -> StepFailed:
    if error:
        where = f"step {step}: {error['where']}" if error["where"] else f"step {step}"
        return StepFailed(error["what"], status=error["exit_code"], where=where, cure=error["cure"])
    if status < 0:
        name = signal.Signals(-status).name
        often = " (the kernel does that when memory runs out)" if -status == signal.SIGKILL else ""
        what = (
            "memory ran out, and the kernel killed it" if out_of_memory else f"its process was killed by {name}{often}"
        )
        return StepFailed(what, status=128 - status, where=f"step {step}", cure=f"its log is {log}")
    what = f"its process ended with status {status} and without a result"
    return StepFailed(what, status=status or 1, where=f"step {step}", cure=f"its log is {log}")
