"""The far end of a run that was sent from another machine: plans there, and runs there as a detached job.

    PYTHON -P -m dflash.pipeline.far plan ROOT            the request on standard input
    PYTHON -P -m dflash.pipeline.far data ROOT            the same
    PYTHON -P -m dflash.pipeline.far run ROOT REQUEST     the request in a file

A request is {"pipeline": {"name", "text"}, "overrides": [...], "host": {"name", "gpus"}, "kinds": import path}, and for
a run also "sender": the fields of record.Sender. It may have "known", parts of the run's provenance, and "apart", a
name under which everything is done anew, as keys.Surroundings has it. `plan` answers with {"plan": as plan.json,
"held": who is at work in the root, or null}; `data` with the hash of each file that is read, by step and name. `run`
writes a line of JSON for each event that a view is told, and last {"event": "ended"}.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash.errors import DFlashError, as_answer
from dflash.hosts.chain import Chain, Local
from dflash.hosts.inventory import Host
from dflash.pipeline import lock
from dflash.pipeline.keys import observe
from dflash.pipeline.kinds import load_kinds
from dflash.pipeline.plan import Plan, make_plan
from dflash.pipeline.provenance.data import data
from dflash.pipeline.provenance.hashes import Hashes
from dflash.pipeline.record import Sender
from dflash.pipeline.run import execute
from dflash.pipeline.schema import Pipeline, load_pipeline
from dflash.pipeline.store import Store

INTERVAL_S = 1.0
"""Progress is told at most so often: a log is followed from its beginning, after days perhaps."""


class Telling:
    """A view that writes what it is told as lines of JSON."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._told = float("-inf")
        self._held: dict[str, Any] | None = None

    def __enter__(self) -> Telling:
        return self

    def __exit__(self, *failure: object) -> None:
        pass

    def started(self, step: str, status: str, why: Sequence[str]) -> None:
        self.say("started", step=step, status=status, why=list(why))
        self._told, self._held = float("-inf"), None

    def progress(self, step: str, done: int, total: int, metrics: Mapping[str, Any]) -> None:
        self._held = {"step": step, "done": done, "total": total, "metrics": dict(metrics)}
        if time.monotonic() - self._told >= INTERVAL_S:
            self._tell_held()

    def note(self, step: str, message: str) -> None:
        self.say("note", step=step, message=message)

    def finished(self, step: str, status: str, seconds: float, why: Sequence[str]) -> None:
        self._tell_held()
        self.say("finished", step=step, status=status, seconds=seconds, why=list(why))

    def say(self, event: str, **values: Any) -> None:
        """One line. A disk that is full must not end the run: it has a record of its own."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, json.dumps({"event": event, **values}).encode() + b"\n")

    def _tell_held(self) -> None:
        if self._held:
            self._told = time.monotonic()
            self.say("progress", **self._held)
            self._held = None


def pipeline_of(request: Mapping[str, Any], folder: Path) -> Pipeline:
    """The pipeline that a request holds, whose file is put into `folder`."""
    file = folder / Path(request["pipeline"]["name"]).name
    file.write_text(request["pipeline"]["text"], encoding="utf-8")
    return load_pipeline(file, load_kinds(request["kinds"]), request["overrides"])


def planned(request: Mapping[str, Any], root: Path, folder: Path) -> Plan:
    """The plan here of what was sent."""
    pipeline = pipeline_of(request, folder)
    here = Host(request["host"]["name"], Chain((Local(),)), str(root), request["host"]["gpus"])
    around = replace(observe(pipeline), apart=request.get("apart", ""))
    return make_plan(pipeline, here, around, Store(root))


def plan(root: Path) -> dict[str, Any]:
    """What `plan` answers."""
    with tempfile.TemporaryDirectory(prefix="dflash-plan-") as folder:
        made = planned(json.load(sys.stdin), root, Path(folder))
    held = lock.owner(root)
    return {"plan": made.as_json(), "held": held and vars(held)}


def read(root: Path) -> dict[str, dict[str, str]]:
    """What `data` answers."""
    with tempfile.TemporaryDirectory(prefix="dflash-data-") as folder, Hashes(root) as hashes:
        return data(planned(json.load(sys.stdin), root, Path(folder)), hashes)


def run(root: Path, file: Path) -> int:
    """Run what the request in `file` asks for, and tell of it; the exit status of the run."""
    request = json.loads(file.read_bytes())
    telling = Telling()
    try:
        sender = Sender(**request["sender"])
        known = request.get("known") or {"source": {"commit": sender.commit, "dirty": sender.dirty}}
        outcome = execute(planned(request, root, file.parent), root, telling, request["kinds"], sender, known)
        error, code = outcome.failure, outcome.exit_code
    except DFlashError as failure:
        error, code = failure, failure.exit_code
    told = error and {"what": error.what, "where": error.where, "cure": error.cure}
    telling.say("ended", exit_code=code, error=told)
    return code


def main() -> int:
    """Do what the words say."""
    role, root, *words = sys.argv[1:]
    try:
        place = Path(root).expanduser().absolute()
        if role == "run":
            return run(place, Path(*words))
        print(json.dumps(read(place) if role == "data" else plan(place)))
    except Exception as failure:
        if not isinstance(failure, DFlashError):
            traceback.print_exception(failure)
        print(as_answer(failure), file=sys.stderr)
        return getattr(failure, "exit_code", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
