"""A step on another host than its run: what it takes is brought there, and what it made is as if it was made here.

The step's process here is what starts, follows and ends the one there, so that limits, retries and a stop are those of
any step. A job there is noted before it starts: what an attempt before left there is ended, and comes home, first.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dflash.atomic import write_json
from dflash.errors import DFlashError, OutOfMemory, StepFailed, UsageError
from dflash.hosts import files, jobs
from dflash.hosts.command import Command, Script
from dflash.hosts.connection import Connection
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.pipeline import machines
from dflash.pipeline.belongings import Belonging, Parcel, look, parcel, place_of, send
from dflash.pipeline.files import canonical, digest
from dflash.pipeline.kinds import StepKind
from dflash.pipeline.launchers import held
from dflash.pipeline.launchers.post import Post, post_of
from dflash.pipeline.launchers.supplies import linked

_OWN = ("done.json", "started.json")
"""Of a step's folder, what is the store's here."""

_EVENTS = ("progress", "note", "result", "error")


class Stream(Protocol):
    """Where a step's events go."""

    def send(self, event: str, **values: Any) -> None: ...

    def note(self, message: str) -> None: ...


def run_elsewhere(spec: Mapping[str, Any], host: Host, kind: StepKind, stream: Stream) -> dict[str, Any]:
    """Run the step that `spec` describes (dflash/pipeline/child.py) at `host`; its result.

    Raises:
        EnvironmentMismatch: the host has not got this environment; names both. UsageError: the step names secrets.
        StepFailed: the step failed there. OutOfMemory: for want of memory. HostError: the host; LostConnection when it
        was not heard of for jobs.PATIENCE_S. KeyboardInterrupt: it was stopped, and what it saved is here.
    """
    out = Path(spec["out"])
    if spec["secrets"]:
        cure = "leave its secrets or its host out"
        raise UsageError("a step on another host is given no secrets", where=f"host: {host.name}", cure=cure)
    note = out / "scratch" / "elsewhere.json"
    note.parent.mkdir(exist_ok=True)
    _settle(note, out)
    with reach(host.chain) as connection:
        post = post_of(connection, host, range(0), Path(spec["root"]), out)
        pairs = [(str(out), post.out), *_bring(connection, post, spec, kind, stream)]
        job = jobs.new_id()
        write_json(note, {"out": post.out, "job": job, **machines.to_json({"host": post.host})})
        files.put(connection, out, post.out)  # what an attempt before has left
        _start(connection, post, job, _translated(spec, pairs) | {"root": post.root, "log": spec["log"]}, spec["env"])
    try:
        result = _followed(post, job, stream)
    except BaseException:
        with contextlib.suppress(DFlashError):  # else it comes home with the next attempt
            _come_home(post.host, post.out, out)
        raise
    _come_home(post.host, post.out, out)
    note.unlink()
    with contextlib.suppress(DFlashError), reach(host.chain) as connection:
        connection.run(["rm", "-rf", post.out, post.own])
    return dict(_translated(result, [(there, here) for here, there in pairs]))


def _bring(
    connection: Connection, post: Post, spec: Mapping[str, Any], kind: StepKind, stream: Stream
) -> Iterator[tuple[str, str]]:
    """Have what the step takes there; the path here and there of each: outputs of steps before it, and files that its
    settings, or results that it is given, name."""
    for name, folder in spec["inputs"].items():
        done = json.loads((Path(folder) / "done.json").read_bytes())
        names = {each["path"]: each["sha256"] for each in done["outputs"]}
        place = f"{post.root}/data/{digest(canonical(sorted(names.items())))[:16]}"
        if not look(connection, [place])[1][place]:
            stream.note(f"sending what {name} made to {post.host.name}")
            with linked(Path(folder), names, Path(spec["out"]) / "scratch" / "sent") as files_of:
                files.put(connection, files_of, f"{place}.part")
            connection.run(["mv", "-T", f"{place}.part", place])
        yield folder, place
    settings = [(path, _at(spec["config"], path)) for path in kind.paths]
    named = [*settings, *(("results", each) for each in _paths_in(spec["results"]))]
    for setting, path in named:
        if path and not any(path.startswith(f"{folder}/") for folder in spec["inputs"].values()):
            belonging = Belonging(setting, path)
            packed: Parcel = parcel(belonging)
            if not look(connection, [place_of(post.root, packed)])[1][place_of(post.root, packed)]:
                stream.note(f"sending {path} to {post.host.name}")
                send(connection, post.root, belonging, packed)
            yield path, f"{place_of(post.root, packed)}/{packed.named}"


def _at(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = value[part]
    return value


def _paths_in(value: Any) -> Iterator[str]:
    """The text values that are paths of this machine."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _paths_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _paths_in(each)
    elif isinstance(value, str) and os.path.isabs(value) and os.path.exists(value):
        yield value


def _translated(value: Any, pairs: Sequence[tuple[str, str]]) -> Any:
    """`value` with each path that is, or is below, the first of a pair as that of the second."""
    if isinstance(value, Mapping):
        return {name: _translated(each, pairs) for name, each in value.items()}
    if isinstance(value, list):
        return [_translated(each, pairs) for each in value]
    if isinstance(value, str):
        for old, new in pairs:
            if value == old or value.startswith(f"{old}/"):
                return new + value[len(old) :]
    return value


def _start(connection: Connection, post: Post, job: str, step: Mapping[str, Any], variables: Mapping[str, str]) -> None:
    patience = {"patience_s": jobs.PATIENCE_S + held.MARGIN_S, "grace_s": held.SAVE_S}
    spec = {"step": {**step, "host": None}, "folder": post.own, **patience}
    argv = [post.python, "-P", "-m", "dflash.pipeline.distant"]
    script = Script("spec.json", json.dumps(spec).encode(), len(argv))
    jobs.start(connection, post.host, Command(argv, {**variables, **post.environment}, post.root, script), job)


def _followed(post: Post, job: str, stream: Stream) -> dict[str, Any]:
    """The step's result, its events told to `stream` and the rest of what it says to the log here."""
    heard: queue.SimpleQueue[str | jobs.Job | DFlashError] = queue.SimpleQueue()
    over = threading.Event()
    held.beside(held.hear, post.host, job, heard.put)
    held.beside(held.renew, post.host, f"{post.own}/lease", over)
    told: dict[str, dict[str, Any]] = {}
    ended: jobs.Job | DFlashError | None = None
    until = math.inf
    try:
        while ended is None and time.monotonic() < until:
            try:
                said = heard.get(timeout=0.5)
                if not isinstance(said, str):
                    ended = said
                elif (event := _event(said)) is None:
                    print(said, file=sys.stderr, flush=True)
                elif event["event"] in ("result", "error"):
                    told[event["event"]] = event
                else:
                    stream.send(**event)
            except queue.Empty:
                continue
            except KeyboardInterrupt:
                until = time.monotonic() + held.SAVE_S
                held.beside(held.end, post.host, job, held.SAVE_S)
    finally:
        over.set()
    if until < math.inf:
        raise KeyboardInterrupt
    if "result" in told:
        return dict(told["result"]["result"])
    if isinstance(ended, jobs.Job):
        raise _failure(post.host, ended, told.get("error"))
    assert ended is not None
    raise ended


def _event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and event.get("event") in _EVENTS else None


def _failure(host: Host, job: jobs.Job, error: Mapping[str, Any] | None) -> DFlashError:
    if error is None:
        what = f"its process there ended with {job.code} and without a result"
        return StepFailed(what, status=job.code or 1, where=host.name, cure="look at the end of its log")
    where = f"{host.name}: {error['where']}" if error["where"] else host.name
    if error["exit_code"] == OutOfMemory.exit_code:
        return OutOfMemory(error["what"], where=where, cure=error["cure"])
    status, reason = error["exit_code"], error.get("reason")
    return StepFailed(error["what"], status=status, where=where, cure=error["cure"], reason=reason)


@held.persistent
def _come_home(host: Host, place: str, out: Path) -> None:
    """Bring what is in the step's folder there into the one here. Raises HostError, StorageError."""
    with reach(host.chain) as connection:
        for name in connection.run(["ls", "-A", place]).stdout.decode().splitlines():
            if name not in _OWN:
                files.get(connection, f"{place}/{name}", out / name)


def _settle(note: Path, out: Path) -> None:
    """End the job of an attempt before, and bring home what it had saved. Raises HostError: it can not be known."""
    try:
        noted = json.loads(note.read_bytes())
        place, job = noted.pop("out"), noted.pop("job")
        host = machines.from_json(noted)["host"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return
    held.end(host, job)
    _come_home(host, place, out)
