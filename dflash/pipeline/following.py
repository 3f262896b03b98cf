"""Follow a run that another machine has, and bring home what it made."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from dflash.atomic import write_json
from dflash.environments.remote import HostEnvironments
from dflash.errors import DFlashError, StepFailed, UsageError, storage_error
from dflash.hosts import files, jobs
from dflash.hosts.connection import Connection
from dflash.hosts.jobs import Job, NoSuchJob
from dflash.hosts.reach import reach, reaching_again
from dflash.pipeline.belongings import look
from dflash.pipeline.errand import Errand
from dflash.pipeline.policy import LEFT_OUT
from dflash.pipeline.provenance.image import with_build
from dflash.pipeline.stopping import GRACE_S
from dflash.pipeline.view import View
from dflash.training.usage import USAGE

_MARGIN_S = 10.0
"""What a runner needs beyond the time that it gives to its steps, when it is told to end."""

NEVER_STARTED = "never started"
"""The state, as an errand notes it, of a run whose job is not there since it was never started."""

_TOLD = ("begun", "started", "progress", "note", "said", "finished")

_persistent = reaching_again(6, most_s=10.0)


class Replay:
    """Tells a view what the lines of a job's log say, and keeps how the run ended."""

    def __init__(self, view: View) -> None:
        self._view, self._rest = view, b""
        self.ended: dict[str, Any] | None = None

    def __call__(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._tell(line.decode(errors="replace"))

    def end(self) -> None:
        """No more comes: a last line that did not end is one, too."""
        if self._rest:
            self(b"\n")

    def _tell(self, line: str) -> None:
        try:
            event = json.loads(line)
            kind = event.pop("event")
        except (ValueError, AttributeError, KeyError, TypeError):
            self._view.note("run", line)  # what a library says, or a traceback
            return
        if kind == "ended":
            self.ended = event
        elif kind in _TOLD:
            getattr(self._view, kind)(**event)


def follow(errand: Errand, view: View) -> tuple[Job, StepFailed | None]:
    """Tell `view` what happens in a run until it ends, from its beginning; how its job ended, and why if it failed.

    A connection that breaks is opened again. Leaving this, by Ctrl-C say, leaves the run as it is.

    Raises:
        NeverStarted, or UsageError: its job is not there any more.
        HostError: the host can not be reached, or could not be again for jobs.PATIENCE_S.
    """
    replay = Replay(view)
    with view, _started(errand):
        job = jobs.follow(errand.where, errand.job, replay)
        replay.end()
    return job, _failure(errand, job, replay.ended)


def _failure(errand: Errand, job: Job, ended: dict[str, Any] | None) -> StepFailed | None:
    if ended is None and job.code == 0:
        return None  # its last word came in the middle of a line that something else wrote
    if ended is None:
        how = "was lost: its host was restarted, or its keeper killed" if job.state == "lost" else f"ended ({job.code})"
        cure = f"./inv resume {errand.run} goes on; its log: ./inv follow {errand.job} --host {errand.host}"
        return StepFailed(f"the run {how}", status=job.code or 1, where=errand.chain, cure=cure)
    if error := ended["error"]:
        where = f"{errand.chain}: {error['where']}" if error["where"] else errand.chain
        return StepFailed(error["what"], status=ended["exit_code"], where=where, cure=error["cure"])
    return None


def stop(errand: Errand, patience_s: float = GRACE_S) -> Job:
    """End every process of a run; how its job ended. Its runner is told first, and has `patience_s` seconds: it lets
    the step save what it has, and runs the last steps. Called while it does, this ends the run at once.

    Raises:
        NeverStarted, or UsageError: its job is not there any more. HostError: the host.
    """
    host, caller = errand.where, token_hex(8)

    @_persistent
    def attempt() -> Job:
        with reach(host.chain) as connection, _started(errand):
            return jobs.stop(connection, host, errand.job, alone=patience_s + _MARGIN_S, caller=caller)

    return attempt()


class NeverStarted(UsageError):
    """Whoever sent a run came no further than to note it."""


@contextlib.contextmanager
def _started(errand: Errand) -> Iterator[None]:
    """Say what it means that there is no such job."""
    try:
        yield
    except NoSuchJob as failure:
        if _began(errand):
            cure = f"./inv show {errand.run} shows what came home of it, ./inv resume {errand.run} goes on with it"
            what = f"the job of run {errand.run} is not there any more"
            raise UsageError(what, where=errand.chain, cure=cure) from failure
        what, cure = f"run {errand.run} never started there", f"./inv resume {errand.run} starts it"
        raise NeverStarted(what, where=errand.chain, cure=cure) from failure


def _began(errand: Errand) -> bool:
    """Whether a run ran whose job is gone: its end was seen, or it has a folder there."""
    if errand.ended:
        return errand.ended.get("state") != NEVER_STARTED
    with reach(errand.where.chain) as connection:
        return look(connection, [errand.folder])[1][errand.folder]


@_persistent
def fetch(errand: Errand, job: Job, folder: Path, failure: DFlashError | None = None) -> Errand:
    """Bring a run that has ended into its folder here, and note its end: record, events, report and logs, the rows of
    metrics.jsonl with their samples, what the workers noted in `usage/`, and the drafter in `export/`; of several
    trainings or exports each with its step's name, in metrics-NAME.jsonl, `usage-NAME/` and `export-NAME/`. A run that
    failed before it began has no folder there: its record here then says `failure`. A generation that was pinned for a
    run that is finished, or never began, is let go.

    Raises:
        HostError: the host. StorageError: a file can not be written here.
    """
    with reach(errand.where.chain) as connection:
        _, there = look(connection, [errand.folder])
        if there[errand.folder] and not errand.is_in(folder):
            verdict = _verdict(folder)
            files.get(connection, errand.folder, folder)
            _complete(folder, verdict)
        if there[errand.folder]:
            _fetch_made(connection, errand, folder)
        elif failure:
            _note_failure(folder, failure)
        unused = not there[errand.folder] and errand.first == errand.run  # else what it resumed may go on yet
        if errand.environment and (job.code == 0 or unused):
            environments = HostEnvironments(connection, errand.where)
            with contextlib.suppress(DFlashError):  # nothing is lost with a pin too many
                environments.pin(errand.environment, "", errand.first)
    ended = replace(errand, ended=asdict(job))
    ended.write(folder)
    return ended


def _verdict(folder: Path) -> Any:
    """The verdict on a replay (dflash/pipeline/judging.py): it is made here, so that the record there has none."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return json.loads((folder / "record.json").read_bytes()).get("replay")
    return None


def _complete(folder: Path, verdict: Any) -> None:
    """Add to a record that was fetched what only this machine knows: the verdict, and how the image was built."""
    try:
        record = json.loads((folder / "record.json").read_bytes())
        around = (record.get("provenance") or {}).get("environment") or {}
        built = with_build(around.get("image"), folder.parents[1])
        if verdict or built != around.get("image"):
            around["image"] = built
            write_json(folder / "record.json", {**record, **({"replay": verdict} if verdict else {})})
    except FileNotFoundError:  # it ended before it had one
        return
    except OSError as failure:
        raise storage_error(failure, folder / "record.json") from failure


def _note_failure(folder: Path, failure: DFlashError) -> None:
    try:
        record = json.loads((folder / "record.json").read_bytes())
        record["status"] = "failed"
        record["steps"][0].update(status="failed", error=str(failure))
        write_json(folder / "record.json", record)
    except OSError as problem:
        raise storage_error(problem, folder / "record.json") from problem


def _fetch_made(connection: Connection, errand: Errand, folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        record = json.loads((folder / "record.json").read_bytes())
        wanted = dict(_made(record))
        _, there = look(connection, [f"{errand.root}/{path}" for path in wanted])
        for path, name in wanted.items():
            if there[f"{errand.root}/{path}"]:
                files.get(connection, f"{errand.root}/{path}", folder / name)


def _made(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What of the steps' folders comes home: by its path below the root there, the name here."""
    kinds = Counter(step["kind"] for step in record["steps"])
    for step in record["steps"]:
        mark = f"-{step['name']}" if kinds[step["kind"]] > 1 else ""
        if step["kind"] == "train" and step["status"] not in ("pending", "blocked", LEFT_OUT):
            for ending in (".jsonl", ".sampled.jsonl"):
                yield f"{step['folder']}/metrics{ending}", f"metrics{mark}{ending}"
            yield f"{step['folder']}/{USAGE}", f"{USAGE}{mark}"
        if step["kind"] == "export" and step["status"] in ("ok", "skipped"):
            yield step["folder"], f"export{mark}"
