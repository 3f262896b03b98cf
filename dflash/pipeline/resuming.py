"""Go on with a run that did not end well: which one that is, and what is left to do of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dflash.errors import DataError, UsageError, storage_error
from dflash.pipeline.plan import Plan
from dflash.pipeline.policy import LEFT_OUT
from dflash.pipeline.record import load_record, runs
from dflash.pipeline.request import load_request, planned


def unfinished(root: Path) -> str:
    """The newest run that did not end well, and that none has gone on with, by that name or with the same command.
    Raises UsageError when there is none."""
    resumed: set[str | None] = set()
    later: list[set[str | None]] = []
    for record in _newest_first(root):
        wanted = {step.get("key") or None for step in record["steps"]}
        is_left = record["status"] in ("failed", "interrupted") and record["id"] not in resumed
        if is_left and not any(wanted <= settled for settled in reversed(later)):
            return str(record["id"])
        resumed.add(record.get("resumes"))
        later.append({step.get("key") for step in record["steps"] if step["status"] in ("ok", "skipped", LEFT_OUT)})
    cure = "./inv runs lists them; ./inv train starts one"
    raise UsageError("every run has ended well, or is at work", where=str(root / "runs"), cure=cure)


def _newest_first(root: Path) -> Iterator[dict[str, Any]]:
    """The records that are whole; none is read before it is asked for."""
    for run in reversed(runs(root)):
        with contextlib.suppress(DataError):
            yield load_record(root, run)


def again(root: Path, run: str) -> tuple[Plan, dict[str, Any]]:
    """What is left to do of a run of this machine, and the request for it. One that was sent here has no folder where
    relative paths begin: it has none.

    Raises:
        UsageError: there is no such run, it has ended well, or what it has finished would have to be made again, since
            something that it was made from has changed.
        DataError: what it was asked to do is damaged. StorageError.
    """
    record = load_record(root, run)
    if record["status"] == "ok":
        raise UsageError(f"run {run} has ended well: nothing of it is left to do", cure="./inv train starts another")
    folder = root / "runs" / run
    request = {**load_request(folder), "resumes": run}
    try:
        with contextlib.chdir(request["folder"] or root):
            plan = planned(request, root, folder)
    except OSError as failure:
        raise storage_error(failure, failure.filename or request["folder"]) from failure
    _require_unchanged(plan, record)
    return plan, request


def _require_unchanged(plan: Plan, record: dict[str, Any]) -> None:
    finished = {step["name"]: step["key"] for step in record["steps"] if step["status"] in ("ok", "skipped")}
    for each in plan.steps:
        if each.step.kind.cached and not each.step.is_last and finished.get(each.step.name, each.key) != each.key:
            what = f"step {each.step.name} is finished, and would have to be made again: {each.why[0]}"
            cure = "undo that, or start anew: ./inv train with the same options"
            raise UsageError(what, where=f"run {record['id']}", cure=cure)


def goes_on_with(plan: Plan, run: str) -> str:
    """What is done about the rest of a run, in a sentence."""
    by_status = {
        said: [each.step.name for each in plan.steps if each.status == status]
        for status, said in (("skip", "finished"), ("resume", "goes on with"), ("run", "still to run"))
    }
    parts = [f"{said}: {', '.join(names)}" for said, names in by_status.items() if names]
    return f"goes on with run {run}; {'; '.join(parts)}"
