"""A run's record: what ran, from what, and what came of it. record.json is whole at every moment."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dflash.errors import DataError, UsageError, storage_error
from dflash.pipeline import lock
from dflash.pipeline.events import last_heard
from dflash.pipeline.keys import stamped_lock
from dflash.pipeline.plan import Plan
from dflash.validation import suggestion

_LIFTED = ("acceptance_length", "acceptance_length_untrained", "greedy_identical", "greedy_total")
_FIELDS = {"id", "pipeline", "host", "status", "started", "wall_s", "peak_rss_mb", "steps"}

STATUSES = ("running", "ok", "failed", "interrupted", "damaged")
"""Of a run, as `listed` gives them."""

_HEAD = 4096
"""Bytes in which a record's first fields are."""

AWAY = "remote.json"
"""Beside the record of a run that another machine has, or had: where it is."""


@dataclass(frozen=True)
class Sender:
    """Who sent a run here from another machine: the run's id there, which it has here, too; `owner`, as user@machine;
    the `commit` of the source that came along, and whether it was `dirty`; and whether the run `waits` for another."""

    run: str
    owner: str
    commit: str | None = None
    dirty: bool | None = None
    waits: bool = False


def new_run(root: Path, pipeline: str, identity: str = "") -> Path:
    """Make `runs/<id>/` below `root`; ids sort by time. A run `identity` that was sent may have a folder here already,
    if whoever sent it has this root, too. Raises OSError, also when there is a run `identity` that has begun."""
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{pipeline}"
    (root / "runs").mkdir(parents=True, exist_ok=True)
    number = 1
    if identity:
        folder = root / "runs" / identity
        folder.mkdir(exist_ok=(folder / AWAY).exists() and not (folder / "events.jsonl").exists())
        return _with_folders(folder)
    while True:
        folder = root / "runs" / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return _with_folders(folder)


def _with_folders(folder: Path) -> Path:
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "specs").mkdir(exist_ok=True)
    return folder


def new_record(run: str, plan: Plan, root: Path, source: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run of `source` (Origin.to_json) that is about to start. For one on another machine, what it runs
    in is not known here."""
    is_here = plan.host.chain.is_local
    return {
        "schema": 1,
        "id": run,
        "pipeline": plan.pipeline.name,
        "host": plan.host.name,
        "status": "running",
        "started": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "wall_s": 0.0,
        "peak_rss_mb": 0.0,
        **dict.fromkeys(_LIFTED),
        "commit": source.get("commit"),
        "dirty": source.get("dirty"),
        "lock_id": (stamped_lock() or None) if is_here else None,
        "python": platform.python_version() if is_here else None,
        "torch": _version("torch") if is_here else None,
        "root": str(root),
        "steps": [
            {
                "name": each.step.name,
                "kind": each.step.kind.name,
                "host": each.step.host,
                "status": "pending",
                "planned": each.status,
                "started": None,
                "seconds": 0.0,
                "why": list(each.why),
                "resumes": None,
                "key": each.key,
                "folder": f"work/{each.step.kind.name}/{each.key[:16]}",
                "result": None,
                "peak_rss_mb": 0.0,
                "error": None,
                "attempts": [],
            }
            for each in plan.steps
        ],
    }


def lift(record: dict[str, Any], kind: str, result: Mapping[str, Any]) -> None:
    """Copy the figures that a run is judged by from the evaluation to the top of the record."""
    if kind == "evaluate":
        record.update({name: result.get(name) for name in _LIFTED})


def runs(root: Path) -> list[str]:
    """The ids of all runs that have a record, oldest first."""
    found = [path.parent.name for path in (root / "runs").glob("*/record.json")]
    return sorted(found, key=order)


def is_run(root: Path, run: str) -> bool:
    """Whether there is a run of that id which has a record."""
    return run == Path(run).name and (root / "runs" / run / "record.json").exists()


def listed(root: Path, *, whole: bool = True) -> list[dict[str, Any]]:
    """The records of all runs, oldest first, or of each only what stands before its steps, which is soon read
    of thousands. In place of a damaged one stands its id, "damaged" as its status, and None for all else:
    one bad file must not hide the other runs. Raises StorageError."""
    found = []
    for run in runs(root):
        try:
            found.append(load_record(root, run, whole=whole))
        except DataError:
            found.append({**dict.fromkeys([*sorted(_FIELDS), *_LIFTED]), "id": run, "status": "damaged", "steps": []})
    return found


def load_record(root: Path, run: str | None = None, *, whole: bool = True) -> dict[str, Any]:
    """A run's record, or what stands before its steps; the newest without `run`. One that was killed reads as
    interrupted when it was last heard of.

    Raises UsageError when there is no such run, DataError for a damaged record, StorageError.
    """
    known = [run] if run and is_run(root, run) else runs(root)  # which looks at every run there is
    if not known:
        raise UsageError("there is no run yet", where=str(root / "runs"), cure="start one with ./inv train")
    if run and run not in known:
        cure = suggestion(run, known, "runs") if len(known) < 10 else "./inv runs lists them"
        raise UsageError(f"there is no run {run!r}", where=str(root / "runs"), cure=cure)
    path = root / "runs" / (run or known[-1]) / "record.json"
    record = _read(path, whole)
    if record.get("status") == "running" and not _is_at_work(root, path.parent):
        _end(record, path.parent)
    return record


def _end(record: dict[str, Any], folder: Path) -> None:
    """Let a run have ended that could not note its own end: its last event is the last that is known of it."""
    record["status"] = "interrupted"
    heard = last_heard(folder / "events.jsonl") or 0.0
    begun = datetime.fromisoformat(record["started"]).timestamp()
    record["wall_s"] = max(record["wall_s"], round(heard - begun, 3))
    for step in record["steps"]:
        if step["status"] == "running":
            step.update(status="interrupted", error="the run ended without a word; it was last heard of then")
            for each in (step, *step.get("attempts", ())[-1:]):
                if each.get("started") and not each["seconds"]:
                    each["seconds"] = max(0.0, round(heard - each["started"], 3))
                    if each is not step:
                        each["reason"] = "unheard"


def _is_at_work(root: Path, folder: Path) -> bool:
    """Of a run that is away, all that is known here is whether its end was seen."""
    if (folder / AWAY).exists():
        try:
            return not json.loads((folder / AWAY).read_bytes()).get("ended")
        except (ValueError, AttributeError):  # damaged: whoever follows it is told so
            return False
    held = lock.owner(root)
    return held is not None and held.run == folder.name


def _read(path: Path, whole: bool) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes() if whole else _head(path))
    except OSError as failure:
        raise storage_error(failure, path) from failure
    except ValueError:
        record = None
    if not isinstance(record, dict) or record.get("id") != path.parent.name or not _is_sound(record):
        cure = "./inv runs lists the others; move this folder away to be rid of it"
        raise DataError("the record is damaged", where=str(path), cure=cure)
    return record


def _is_sound(record: Mapping[str, Any]) -> bool:
    """Whether there is, of what whoever reads a record relies on, all, and is of its kind."""
    if not record.keys() >= _FIELDS or not isinstance(record["steps"], list):
        return False
    try:
        datetime.fromisoformat(record["started"]).timestamp()
    except (ValueError, TypeError, OverflowError):
        return False
    words = [record[name] for name in ("pipeline", "host", "status")]
    numbers = [record["wall_s"], record["peak_rss_mb"]]
    for step in record["steps"]:
        if not isinstance(step, dict) or not isinstance(tries := step.get("attempts") or [], list):
            return False
        if not all(isinstance(each, dict) for each in tries):
            return False
        words += [step.get(name) for name in ("name", "kind", "status", "folder")]
        numbers += [step.get("seconds")]
        numbers += [each.get(name) or 0 for each in (step, *tries) for name in ("started", "seconds")]
    return all(isinstance(each, str) for each in words) and all(_is_finite(each) for each in numbers)


def _is_finite(value: Any) -> bool:
    """Whether it is a number that a float can be: JSON's may be larger."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _head(path: Path) -> bytes:
    """A record's JSON without its steps and what follows them; all of it where it does not end as `write_json` does."""
    with path.open("rb") as file:
        head, found, _ = file.read(_HEAD).partition(b'"steps":')
        file.seek(-min(3, file.seek(0, os.SEEK_END)), os.SEEK_END)
        if found and file.read() == b"\n}\n":  # which is nowhere else, as all that is inside is indented
            return head + b'"steps": []}'
        file.seek(0)
        return file.read()


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def seconds(self) -> float:
        return round(time.monotonic() - self._start, 3)


def order(run: str) -> tuple[str, int, str]:
    """By which runs are sorted by when they began."""
    stamp, _, name = run.partition("-")
    number = re.search(r"-(\d+)$", name)
    return stamp, int(number[1]) if number else 1, name


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
