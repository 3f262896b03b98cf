"""Start a run that is ready at another machine: its runner is a detached job there, and is found again from here."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import Any

from dflash.atomic import write_json
from dflash.environments.remote import HostEnvironments
from dflash.errors import BusyError, DFlashError, storage_error
from dflash.hosts import jobs
from dflash.hosts.command import Command, Script
from dflash.hosts.connection import Connection
from dflash.hosts.failures import LostConnection
from dflash.pipeline import leaks
from dflash.pipeline.away import Ready, secrets_of_plan
from dflash.pipeline.errand import Errand
from dflash.pipeline.record import Sender, new_record, new_run
from dflash.pipeline.redaction import set_of
from dflash.pipeline.source import PATCH


def launch(connection: Connection, ready: Ready, root: Path, *, waits: bool = False) -> tuple[Errand, Path]:
    """Start the run's job there; the errand, and its folder below `root` here. All that it takes to find the run again
    is written before it starts; secrets, which are taken from the environment here, are not. With `waits`, a run that
    is at work in that root is waited for, there.

    Raises:
        BusyError: another run is at work there, which is named. UsageError: a secret is not set, or shows.
        HostError: the host. StorageError: the folder here can not be written.
    """
    if ready.held and not waits:
        cure = f"wait for it with --wait, or end it: ./inv stop {ready.held.run}, where it was started"
        raise BusyError(f"{ready.held} is at work there", where=f"{connection.layer}: {ready.host.root}", cure=cure)
    secrets, known = secrets_of_plan(ready.plan), set_of(ready.request.get("secrets", ()), os.environ)
    leaks.refuse_in_source(known, [(PATCH, ready.origin.patch or b"")], "recorded")  # of a run before, perhaps
    if waits:  # what is finished now may not be by then
        secrets |= known
    try:
        folder = new_run(root, f"{ready.plan.pipeline.name}-{token_hex(2)}")
        errand = _errand(ready, folder.name, waits)
        _write(ready, errand, folder)
    except OSError as failure:
        raise storage_error(failure, failure.filename or root) from failure
    argv = [errand.python, "-P", "-m", "dflash.pipeline.far", "run", errand.root]
    request = Script("request.json", json.dumps(errand.request).encode(), len(argv))
    command = Command(argv, _variables(errand), errand.root, request)  # where a core dump, say, is in nobody's way
    try:
        if errand.environment:
            HostEnvironments(connection, ready.host).pin(errand.environment, errand.generation, errand.first)
        jobs.start(connection, ready.host, command, errand.job, secrets)
    except LostConnection as failure:
        failure.cure = f"./inv follow {errand.run} says whether it has started"
        raise
    except KeyboardInterrupt:
        print(f"\n./inv follow {errand.run} says whether it has started", file=sys.stderr)
        raise
    except DFlashError:
        replace(errand, ended={"state": "never started"}).write(folder)
        raise
    return errand, folder


def _errand(ready: Ready, run: str, waits: bool) -> Errand:
    origin, resumes = ready.origin, ready.resumes
    assert ready.host.root is not None
    return Errand(
        run=run,
        host=ready.host.name,
        chain=str(ready.host.chain),
        root=ready.host.root,
        job=jobs.new_id(),
        environment=ready.environment if ready.generation else "",
        generation=ready.generation,
        python=ready.python,
        source=ready.source,
        request={
            **ready.request,
            "sender": asdict(Sender(run, owner(), origin.commit, origin.dirty, waits)),
            "known": {**ready.request.get("known", {}), **_predecessor(resumes), "source": origin.to_json()},
        },
        started=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        first=resumes.first if resumes else run,
        lock=ready.lock,
    )


def _predecessor(resumes: Errand | None) -> dict[str, Any]:
    return {"predecessor": {"run": resumes.run, "how": "resumed"}} if resumes else {}


def owner() -> str:
    """Who sends a run, as user@machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _write(ready: Ready, errand: Errand, folder: Path) -> None:
    origin = replace(ready.origin, digest=PurePosixPath(errand.source).name)
    origin.keep(folder)
    write_json(folder / "plan.json", ready.plan.as_json())
    errand.write(folder)
    record = new_record(errand.run, ready.plan, Path(errand.root), origin.to_json())
    write_json(folder / "record.json", {**record, "resumes": errand.request.get("resumes")})


def _variables(errand: Errand) -> dict[str, str]:
    """Compiled Python lies apart from the source and the generation, which are compared file by file. A generation
    comes without any, and so does an image: each step would compile all of torch's again."""
    if not errand.generation and not errand.lock:
        return {"PYTHONPATH": errand.source, "PYTHONDONTWRITEBYTECODE": "1"}
    return {"PYTHONPATH": errand.source, "PYTHONPYCACHEPREFIX": f"{errand.root}/pycache"}
