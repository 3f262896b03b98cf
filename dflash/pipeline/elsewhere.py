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
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Protocol

from dflash.atomic import write_json
from dflash.errors import BusyError, DFlashError, OutOfMemory, StepFailed, UsageError
from dflash.hosts import files, jobs
from dflash.hosts.command import Command, Script
from dflash.hosts.connection import Connection
from dflash.hosts.failures import HostError, LostConnection
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.pipeline import machines
from dflash.pipeline.belongings import Belonging, Parcel, look, parcel, place_of, send
from dflash.pipeline.files import canonical, digest
from dflash.pipeline.kinds import StepKind, load_kinds
from dflash.pipeline.launchers import held
from dflash.pipeline.launchers.post import Post, own_word_of, post_of, whose
from dflash.pipeline.launchers.supplies import linked

_OWN = ("done.json", "started.json")
"""Of a step's folder, what is the store's here."""


class Stream(Protocol):
    """Where a step's events go."""

    def send(self, event: str, **values: Any) -> None: ...

    def note(self, message: str) -> None: ...


def run_elsewhere(spec: Mapping[str, Any], host: Host, kind: StepKind, stream: Stream) -> dict[str, Any]:
    """Run the step that `spec` describes (dflash/pipeline/child.py) at `host`; its result.

    Raises:
        EnvironmentMismatch: the host has not got this environment; names both. UsageError: the step names secrets.
        BusyError: another run works on this step there. StepFailed: the step failed there. OutOfMemory: for want of
        memory. HostError: the host; LostConnection when it was not heard of for jobs.PATIENCE_S, or has started anew.
        KeyboardInterrupt: it was stopped, and what it saved is here.
    """
    out = Path(spec["out"])
    if spec["secrets"]:
        cure = "leave its secrets or its host out"
        raise UsageError("a step on another host is given no secrets", where=f"host: {host.name}", cure=cure)
    note_of(out).parent.mkdir(exist_ok=True)
    settle(out, host, stream)
    with reach(host.chain) as connection:
        post = post_of(connection, host, range(0), Path(spec["root"]), out)
        pairs = [(str(out), post.out), *_bring(connection, post, spec, kind, stream)]
        files.put(connection, out, post.out)  # what an attempt before has left
    job, word = jobs.new_id(), secrets.token_hex(16)
    # Only now: what is noted comes home, and what is not there then is taken for removed.
    write_json(note_of(out), {"out": post.out, "own": post.own, "job": job, **machines.to_json({"host": post.host})})
    try:
        with reach(host.chain) as connection:
            _start(connection, post, job, word, spec, _there(spec, kind, pairs))
        result = _followed(post, job, word, stream)
    except BaseException:
        held.end(post.host, job, held.SAVE_S)
        with contextlib.suppress(DFlashError):  # else it comes home with the next attempt
            _come_home(post.host, post.out, post.own, out)
        raise
    if not _come_home(post.host, post.out, post.own, out):
        raise StepFailed("what it has made there is gone", status=1, where=f"{host.name}: {post.out}", cure="run again")
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
    settings = [(path, reduce(getitem, path.split("."), spec["config"])) for path in kind.paths]
    named = [*settings, *(("results", each) for each in _paths_in(spec["results"]))]
    for setting, path in named:
        if path and not any(path.startswith(f"{folder}/") for folder in spec["inputs"].values()):
            belonging = Belonging(setting, path)
            packed: Parcel = parcel(belonging)
            if not look(connection, [place_of(post.root, packed)])[1][place_of(post.root, packed)]:
                stream.note(f"sending {path} to {post.host.name}")
                send(connection, post.root, belonging, packed)
            yield path, f"{place_of(post.root, packed)}/{packed.named}"


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


def _there(spec: Mapping[str, Any], kind: StepKind, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The spec as it must be there. Only what names a path is looked at: other words may be the same by chance."""
    lent = spec["borrowed"]
    if lent:
        paths = load_kinds(spec["kinds"])[lent["kind"]].paths
        lent = {**lent, "config": _moved(lent["config"], paths, pairs)}
    absolute = [(old, new) for old, new in pairs if os.path.isabs(old)]
    moved = {name: _translated(spec[name], absolute) for name in ("inputs", "results", "out")}
    config = _moved(spec["config"], kind.paths, pairs)
    return {**spec, **moved, "config": config, "borrowed": lent, "host": None, "project": None}


def _moved(config: Mapping[str, Any], paths: Sequence[str], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """`config` with the settings at `paths` translated."""
    found = dict(config)
    for path in paths:
        name, _, rest = path.partition(".")
        found[name] = _moved(found[name], [rest], pairs) if rest else _translated(found[name], pairs)
    return found


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


def _start(
    connection: Connection, post: Post, job: str, word: str, here: Mapping[str, Any], there: Mapping[str, Any]
) -> None:
    patience = {"patience_s": jobs.PATIENCE_S + held.MARGIN_S, "grace_s": held.SAVE_S}
    lock = {"lock": post.lock, "of": whose(Path(here["root"]))}
    spec = {"step": {**there, "root": post.root}, "folder": post.own, "word": word, **lock, **patience}
    argv = [post.python, "-P", "-m", "dflash.pipeline.distant"]
    script = Script("spec.json", json.dumps(spec).encode(), len(argv))
    jobs.start(connection, post.host, Command(argv, {**here["env"], **post.environment}, post.root, script), job)


def _followed(post: Post, job: str, word: str, stream: Stream) -> dict[str, Any]:
    """The step's result, its events, which `word` begins, told to `stream` and the rest of what it says to the log
    here."""
    heard: queue.SimpleQueue[str | jobs.Job | DFlashError] = queue.SimpleQueue()
    over = threading.Event()
    held.beside(held.hear, post.host, job, heard.put)
    held.beside(held.renew, post.host, f"{post.own}/lease", over)
    told: dict[str, dict[str, Any]] = {}
    ended: jobs.Job | DFlashError | None = None
    until, blank = math.inf, False
    try:
        while ended is None and time.monotonic() < until:
            try:
                said = heard.get(timeout=0.5)
                event = _event(said, word) if isinstance(said, str) else None
                if blank and event is None:
                    print(file=sys.stderr, flush=True)
                blank = said == ""  # which may only be what an event has before it
                if not isinstance(said, str):
                    ended = said
                elif event is None:
                    if said:
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
    assert ended is not None
    if not isinstance(ended, jobs.Job):
        raise ended
    if "result" in told and "error" not in told and ended.code == 0:
        return dict(told["result"]["result"])
    raise _failure(post.host, ended, told.get("error"))


def _event(line: str, word: str) -> dict[str, Any] | None:
    begun, _, text = line.partition(" ")
    try:
        return dict(json.loads(text)) if begun == word else None
    except ValueError:  # the disk there was full
        return None


def _failure(host: Host, job: jobs.Job, error: Mapping[str, Any] | None) -> DFlashError:
    if job.state == "lost":
        what = f"{host.name} has started anew, or what kept the step there was killed"
        return LostConnection(what, layer=str(host.chain), cure="run again to go on from what the step has saved")
    if error is None:
        what = f"its process there ended with {job.code} and without a result"
        return StepFailed(what, status=job.code or 1, where=host.name, cure="look at the end of its log")
    where = f"{host.name}: {error['where']}" if error["where"] else host.name
    if error["reason"] == "memory":
        return OutOfMemory(error["what"], where=where, cure=error["cure"])
    if error["exit_code"] == BusyError.exit_code:
        return BusyError(error["what"], where=where, cure=error["cure"])
    status, reason = error["exit_code"], error.get("reason")
    return StepFailed(error["what"], status=status, where=where, cure=error["cure"], reason=reason)


# --- what is there comes home


def note_of(out: Path) -> Path:
    """The file in which a step's folder has which job works for it elsewhere, until what that made is home."""
    return out / "scratch" / "elsewhere.json"


def settle(out: Path, host: Host | None, stream: Stream) -> None:
    """End the job of an attempt before, and bring home what it had saved. One on another host than the step's, `host`,
    that can not be reached any more is left there: its lease ends it. Raises HostError."""
    try:
        noted = json.loads(note_of(out).read_bytes())
        place, own, job = noted.pop("out"), noted.pop("own"), noted.pop("job")
        before = machines.from_json(noted)["host"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return
    held.end(before, job)
    try:
        _come_home(before, place, own, out)
    except HostError as failure:
        if host is not None and host.chain == before.chain:
            raise
        stream.note(f"what an attempt before has saved at {before.name} stays there: {failure}")
        _forget(out)


# A line for each would be cut at a newline in a name.
_LIST = """
import os, sys
place = os.fsencode(sys.argv[1])
if not os.path.isdir(place):
    sys.exit(3)
for folder, folders, names in os.walk(place):
    for name in folders + names:
        sys.stdout.buffer.write(os.path.relpath(os.path.join(folder, name), place) + b"\\0")
"""
_GONE = 3


def _come_home(host: Host, place: str, own: str, out: Path) -> bool:
    """Have the step's folder here as the one there is, and nothing of it left there; whether there was one. Raises
    HostError, StorageError."""
    was_there = _fetch(host, place, out)
    _forget(out)
    with contextlib.suppress(DFlashError), reach(host.chain) as connection:
        connection.run(["rm", "-rf", place, own])
    return was_there


def _forget(out: Path) -> None:
    note_of(out).unlink(missing_ok=True)
    own_word_of(out).unlink(missing_ok=True)  # what could not be removed there is never taken for an attempt's again


@held.persistent
def _fetch(host: Host, place: str, out: Path) -> bool:
    with reach(host.chain) as connection:
        listed = connection.run(["python3", "-IS", "-c", _LIST, place])
        if listed.status == _GONE:
            return False
        if listed.code:
            said = listed.stderr.decode(errors="replace").strip().splitlines()
            raise HostError(said[-1] if said else f"python3 ended with {listed.code}", layer=connection.layer)
        there = {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}
        for name in sorted(name for name in there if "/" not in name and name not in _OWN):
            files.get(connection, f"{place}/{name}", out / name)
    spared = {*_OWN, "scratch", *(str(file(out).relative_to(out)) for file in (note_of, own_word_of))}
    for path in sorted(out.rglob("*"), reverse=True):  # what is in a folder before it
        if str(path.relative_to(out)) not in there | spared:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return True
