"""What a run would do and why. A plan is data; nothing here reads a disk except through a `Shelf`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dflash.hosts.inventory import Host
from dflash.pipeline.changes import Change, changes
from dflash.pipeline.keys import HOME, Surroundings, keyed
from dflash.pipeline.machines import layouts_of
from dflash.pipeline.policy import LEFT_OUT
from dflash.pipeline.schema import Pipeline, Step
from dflash.pipeline.store import Done, Folder
from dflash.pipeline.when import planned_when, unmet_condition, unmet_need
from dflash.training.config import TrainConfig
from dflash.validation import plain


class Shelf(Protocol):
    """Where finished steps are looked up: the store, or facts in a test."""

    @property
    def look(self) -> Callable[[str, str], Folder]: ...

    @property
    def newest(self) -> Callable[[str, str], Done | None]: ...


@dataclass(frozen=True)
class Decision:
    """`status` is "run", "skip", "resume" or LEFT_OUT; `why` has one reason a line, and `changes` are the fields of
    its key that have changed."""

    status: str
    why: tuple[str, ...]
    content: str | None = None  # of the outputs, when they are finished and sound
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class PlannedStep:
    """A step with its key (empty when it can not be known here) and what will be done about it."""

    step: Step
    fields: Mapping[str, Any]
    key: str
    status: str
    why: tuple[str, ...]
    gpus: int  # that it uses at once
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Steps in the order in which they run; `hosts` are the machines that they name, as `host` reaches them. `project`
    is where their relative `inputs` begin."""

    pipeline: Pipeline
    host: Host
    steps: tuple[PlannedStep, ...]
    hosts: Mapping[str, Host] = field(default_factory=dict)
    project: Path = HOME

    def as_json(self) -> dict[str, Any]:
        """The document of `plan --json` and plan.json."""
        return {
            "schema": 1,
            "pipeline": self.pipeline.name,
            "description": self.pipeline.description,
            "file": self.pipeline.file,
            "host": self.host.name,
            "chain": str(self.host.chain),
            "steps": [
                {
                    "name": each.step.name,
                    "uses": each.step.kind.name,
                    "describes": each.step.kind.describes,
                    "needs": list(each.step.needs),
                    "matrix": dict(each.step.matrix),
                    "when": each.step.when,
                    "is_last": each.step.is_last,
                    "timeout_s": each.step.limits.timeout_s,
                    "status": each.status,
                    "why": list(each.why),
                    "changes": [change.as_json() for change in each.changes],
                    "needs_gpu": each.gpus > 0,
                    "gpus": each.gpus,
                    "key": each.key,
                    "config": plain(each.step.kind.config, each.step.config),
                    "fields": dict(each.fields),
                }
                for each in self.steps
            ],
        }


def make_plan(
    pipeline: Pipeline,
    host: Host,
    surroundings: Surroundings | None,
    shelf: Shelf,
    hosts: Mapping[str, Host] | None = None,
) -> Plan:
    """Plan `pipeline` on `host`. `surroundings` None: that machine is not known from here. `hosts` are as in a Plan.

    Raises UsageError for a condition that can not be decided.
    """
    layouts = layouts_of(pipeline, hosts or {})
    keys = keyed(pipeline, surroundings, layouts) if surroundings else {}
    contents: dict[str, str | None] = {}
    left_out: set[str] = set()
    unknown = Decision("run", (f"what {host.name} holds is not known until it is reached",))
    steps = []
    for step in pipeline.steps:
        key, fields = keys.get(step.name, ("", {}))
        given = {kind: contents[name] for kind, name in step.takes.items()}
        holds = planned_when(step, host, pipeline)
        decision = _left_out(step, holds, left_out) or (decide(step, key, fields, given, shelf) if fields else unknown)
        contents[step.name] = decision.content
        why, gpus = decision.why, gpus_for(step, pipeline, layouts)
        if decision.status == LEFT_OUT:
            left_out.add(step.name)
            gpus = 0
        elif holds is None:
            why = (f"only if {step.when}, which is known then", *why)
        steps.append(PlannedStep(step, fields, key, decision.status, why, gpus, decision.changes))
    return Plan(pipeline, host, tuple(steps), hosts or {})


def _left_out(step: Step, holds: bool | None, left_out: Collection[str]) -> Decision | None:
    """The decision to leave a step out, where that is known before anything runs: its condition does not hold, or what
    it needs is among `left_out`."""
    if why := unmet_need(step, left_out):
        return Decision(LEFT_OUT, (why,))
    return Decision(LEFT_OUT, (unmet_condition(step),)) if holds is False else None


def gpus_for(step: Step, pipeline: Pipeline, layouts: Mapping[str, Sequence[int]]) -> int:
    """How many GPUs a step uses at once: none, one, or one for each worker of a training, or of one that it prepares
    for; where that is on several hosts, as `layouts` (machines.layouts_of) say, one for each on the same of them."""
    lender = pipeline.step(step.borrows) if step.borrows else step
    if not (step.kind.gpu(step.config) or lender.kind.gpu(lender.config)):
        return 0
    workers = lender.config.topology.size if isinstance(lender.config, TrainConfig) else 1
    return max(layouts.get(step.name, (workers,)))


def decide(
    step: Step, key: str, fields: Mapping[str, Any], contents: Mapping[str, str | None], shelf: Shelf
) -> Decision:
    """Run, skip or resume a step; `contents` are, by kind, those of its inputs (None: not made yet)."""
    if step.is_last or not step.kind.cached:
        return Decision("run", ("runs every time",))
    folder = shelf.look(step.kind.name, key)
    if folder.state == "absent":
        return _changed(step, fields, shelf)
    made_from = folder.contents or {}
    missing = [name for kind, name in step.takes.items() if contents[kind] is None]
    other = [name for kind, name in step.takes.items() if contents[kind] not in (None, made_from.get(kind))]
    if folder.state == "started":
        if other and folder.contents is not None:
            return Decision("run", tuple(f"what {name} made is not what it was started with" for name in other))
        if folder.has_failed:
            return Decision("resume", (f"it failed in run {folder.started_by}",))
        by = f" by run {folder.started_by}" if folder.started_by else ""
        return Decision("resume", (f"it was started{by} and has not finished",))
    why = [
        *folder.damage,
        *(f"what {name} made has changed" for name in other),
        *(f"{name} is made again first; if that gives the same files, this is skipped" for name in missing),
    ]
    if why:
        return Decision("run", tuple(why))
    assert folder.done is not None
    return Decision("skip", ("nothing it depends on has changed",), folder.done.content)


def _changed(step: Step, fields: Mapping[str, Any], shelf: Shelf) -> Decision:
    if apart := fields.get("apart"):
        return Decision("run", (f"it is done again, as it was in run {apart.split()[0]}",))
    before = shelf.newest(step.kind.name, step.name)
    if before is None:
        return Decision("run", ("it has not been made before",))
    found = tuple(changes(before.fields, fields))
    return Decision("run", tuple(map(str, found)) or ("its output folder is gone",), changes=found)
