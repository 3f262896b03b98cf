"""What a report is made of, and where that is found: a run's record, what its trainings logged, the run before."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash.errors import DataError, storage_error
from dflash.pipeline.comparing import Difference, compare
from dflash.pipeline.record import load_record, runs
from dflash.pipeline.report.timeline import Span, spans_of
from dflash.pipeline.share import Share, own_share
from dflash.training.sampling import Samples, last_with, load_samples
from dflash.training.usage import USAGE, Worker, workers_in


@dataclass(frozen=True)
class Training:
    """A training step: its record, what it logged, the workers of each role, by number, the last row that was measured
    on held-out rows, what each worker noted of itself, the run's share in the log, and how many GPUs make a target."""

    step: Mapping[str, Any]
    samples: Samples
    roles: Mapping[str, Sequence[int]] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)
    workers: Sequence[Worker] = ()
    share: Share = field(default_factory=Share)
    target_gpus: int = 1


@dataclass(frozen=True)
class Contents:
    """All that a page shows. `spans` are by step; `previous` is the record of the run of the same pipeline before, from
    which this one has the `differences`."""

    record: Mapping[str, Any]
    trainings: Sequence[Training] = ()
    spans: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    previous: Mapping[str, Any] | None = None
    differences: Sequence[Difference] = ()


def gather(root: Path, record: Mapping[str, Any]) -> Contents:
    """Read what a report of this record needs. Raises StorageError."""
    folder = root / "runs" / record["id"]
    steps, until = record["steps"], time.time() if record["status"] == "running" else None
    old = any(step.get("started") is None and not step.get("attempts") for step in steps)
    began = _began(folder / "events.jsonl") if old else {}
    spans = {step["name"]: spans_of(step, began.get(step["name"]), until) for step in steps}
    topologies = _topologies(folder / "plan.json")
    trainings = [
        Training(
            step,
            samples,
            _roles(topologies.get(step["name"], {})),
            last_with("heldout", log, samples.buckets),
            workers_in(usage_of(root, record, step), share.last),
            share,
            topologies.get(step["name"], {}).get("target_gpus", 1),
        )
        for step in steps
        if step["kind"] == "train"
        for log in [metrics_of(root, record, step)]
        for share in [own_share(root, record, step, log)]
        if (samples := load_samples(log, share.last))
    ]
    previous = before(root, record)
    return Contents(record, trainings, spans, previous, compare(previous, record) if previous else ())


def metrics_of(root: Path, record: Mapping[str, Any], step: Mapping[str, Any]) -> Path:
    """Where the log of a training lies: in its step's folder, or where it was fetched to from another machine."""
    return _made(root, record, step, "metrics", ".jsonl")


def usage_of(root: Path, record: Mapping[str, Any], step: Mapping[str, Any]) -> Path:
    """Where the folder of what a training's workers noted of themselves lies; as `metrics_of`."""
    return _made(root, record, step, USAGE)


def _made(root: Path, record: Mapping[str, Any], step: Mapping[str, Any], name: str, ending: str = "") -> Path:
    here: Path = root / step["folder"] / f"{name}{ending}"
    several = sum(each["kind"] == step["kind"] for each in record["steps"]) > 1
    mark = f"-{step['name']}" if several else ""
    fetched = root / "runs" / record["id"] / f"{name}{mark}{ending}"
    return fetched if fetched.exists() else here


def counterpart(record: Mapping[str, Any], step: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The result of the step of another kind that goes with this one: of the same combination of a matrix, as both
    names say. Empty where it has none, or where that can not be told, as there are several of either kind."""
    _, _, combination = step["name"].partition("@")
    alike = [each for each in record["steps"] if each["name"].partition("@")[2] == combination]
    others = [each for each in alike if each["kind"] == kind]
    if len(others) != 1 or sum(each["kind"] == step["kind"] for each in alike) != 1:
        return {}
    return others[0]["result"] or {}


def before(root: Path, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The newest run of the same pipeline that is older than this one. Raises StorageError."""
    known = runs(root)
    older = known[: known.index(record["id"])] if record["id"] in known else known
    for run in reversed(older):
        try:
            if load_record(root, run, whole=False)["pipeline"] == record["pipeline"]:
                return load_record(root, run)
        except DataError:
            continue
    return None


def _began(events: Path) -> dict[str, float]:
    """When each step first began, as the events say; most of their lines are progress, which is not parsed."""
    began: dict[str, float] = {}
    try:
        with events.open("rb") as file:
            for line in file:
                if b'"step_started"' not in line:
                    continue
                with contextlib.suppress(ValueError, KeyError, TypeError):  # a torn line
                    event = json.loads(line)
                    began.setdefault(event["step"], float(event["time"]))
    except FileNotFoundError:
        return {}
    except OSError as failure:
        raise storage_error(failure, events) from failure
    return began


def _topologies(plan: Path) -> dict[str, Mapping[str, Any]]:
    """The topology of each training, as it was planned."""
    try:
        steps = json.loads(plan.read_bytes())["steps"]
        return {step["name"]: step["config"]["topology"] for step in steps if "topology" in step.get("config", {})}
    except FileNotFoundError:
        return {}
    except OSError as failure:
        raise storage_error(failure, plan) from failure
    except (ValueError, KeyError, TypeError):
        return {}


def _roles(topology: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    if "drafters" not in topology:
        return {}
    made = topology["targets"] * topology.get("target_gpus", 1)
    drafters = range(made, made + topology["drafters"])
    return {"target": range(made), "drafter": drafters} if made else {"target and drafter": drafters}
