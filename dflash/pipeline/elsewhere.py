"""A step on another host than its run: what it takes is brought there, and what it made is as if it was made here.

The step's process here is what starts, follows and ends the one there, so that limits, retries and a stop are those of
any step. A job there is noted before it starts: what an attempt before left there is ended, and comes home, first.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import secrets
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.atomic import write_json
from dflash.errors import BusyError, DFlashError, OutOfMemory, StepFailed, UsageError
from dflash.hosts import files, jobs
from dflash.hosts.command import Command, Script
from dflash.hosts.connection import Connection
from dflash.hosts.failures import LostConnection
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.pipeline import machines
from dflash.pipeline.bringing import bring, bring_inputs, spec_there, translated
from dflash.pipeline.homecoming import come_home, note_of, settle
from dflash.pipeline.kinds import StepKind
from dflash.pipeline.launchers import held
from dflash.pipeline.launchers.post import Post, post_of, whose
from dflash.pipeline.stream import Events


def run_elsewhere(spec: Mapping[str, Any], host: Host, kind: StepKind, stream: Events) -> dict[str, Any]:
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
        pairs = [(str(out), post.out), *bring(connection, post, spec, kind, stream)]
        came = bring_inputs(connection, post, spec, stream)
        files.put(connection, out, post.out)  # what an attempt before has left
    job, word = jobs.new_id(), secrets.token_hex(16)
    # Only now: what is noted comes home, and what is not there then is taken for removed.
    write_json(note_of(out), {"out": post.out, "own": post.own, "job": job, **machines.to_json({"host": post.host})})
    try:
        with reach(host.chain) as connection:
            _start(connection, post, job, word, spec, {**spec_there(spec, kind, pairs), "came": came})
        result = _followed(post, job, word, stream)
    except BaseException:
        held.end(post.host, job, held.SAVE_S)
        with contextlib.suppress(DFlashError):  # else it comes home with the next attempt
            come_home(post.host, post.out, post.own, out)
        raise
    if not come_home(post.host, post.out, post.own, out):
        raise StepFailed("what it has made there is gone", status=1, where=f"{host.name}: {post.out}", cure="run again")
    return dict(translated(result, [(there, here) for here, there in pairs]))


def _start(
    connection: Connection, post: Post, job: str, word: str, here: Mapping[str, Any], there: Mapping[str, Any]
) -> None:
    patience = {"patience_s": jobs.PATIENCE_S + held.MARGIN_S, "grace_s": held.SAVE_S}
    lock = {"lock": post.lock, "of": whose(Path(here["root"]))}
    spec = {"step": {**there, "root": post.root}, "folder": post.own, "word": word, **lock, **patience}
    argv = [post.python, "-P", "-m", "dflash.pipeline.distant"]
    script = Script("spec.json", json.dumps(spec).encode(), len(argv))
    jobs.start(connection, post.host, Command(argv, {**here["env"], **post.environment}, post.root, script), job)


def _followed(post: Post, job: str, word: str, stream: Events) -> dict[str, Any]:
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
