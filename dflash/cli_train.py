"""What the verbs do that train on a host, and that follow, stop and resume such a run."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash import cli
from dflash.errors import DFlashError, UsageError
from dflash.hosts.inventory import Host, find_host

if TYPE_CHECKING:
    from dflash.errors import StepFailed
    from dflash.hosts.connection import Connection
    from dflash.hosts.jobs import Job
    from dflash.pipeline.away import Order, Ready
    from dflash.pipeline.errand import Errand
    from dflash.pipeline.plan import Plan


def train(
    *,
    pipeline: str,
    host: str,
    root: str,
    environment: str,
    wheels: str,
    wait: bool,
    overrides: Sequence[str],
    as_json: bool,
) -> None:
    """Plan a pipeline and run it, here or on a host, and say how it went. Exits with the status of the run."""
    if "," in host:
        cure = "give each a ./inv train of its own; they run side by side"
        raise UsageError("train takes one host", where=f"--host {host}", cure=cure)
    there = find_host(host, cli.HOME / "hosts.yaml")
    if there.chain.is_local:
        if environment or wheels or wait:
            cure = "name a host that is not this machine, or leave them out"
            raise UsageError("--environment, --wheels and --wait are for a run on a host", cure=cure)
        cli.train(pipeline=pipeline, host=host, root=root, overrides=overrides, as_json=as_json)
        return
    from dflash.hosts.reach import reach
    from dflash.pipeline.away import prepare

    order = order_of(pipeline, there, environment, wheels, overrides)
    with reach(there.chain) as connection:
        ready = prepare(connection, order, lambda line: _tell(there.name, line))
        errand = _launch(connection, ready, cli.root_of(root), wait)
    _follow(errand, cli.root_of(root), as_json)


def plan(*, pipeline: str, host: str, root: str, overrides: Sequence[str], why: bool, as_json: bool) -> None:
    """Say what a run would do. A host is asked, where it can be reached and has been made ready by a run before."""
    from dflash.pipeline.show import show_plan

    made = _planned(pipeline, host, root, overrides)
    if as_json:
        cli.print_json(made.as_json())
    else:
        show_plan(made, every_reason=why)


def graph(*, pipeline: str, host: str, root: str, overrides: Sequence[str], out: str) -> None:
    """Draw a pipeline and what a run would do, as SVG into a file, or else on standard output."""
    from dflash.errors import storage_error
    from dflash.pipeline.files import write_text
    from dflash.pipeline.graph import drawing

    picture = drawing(_planned(pipeline, host, root, overrides))
    if not out:
        print(picture, end="")
        return
    try:
        write_text(Path(out), picture)
    except OSError as failure:
        raise storage_error(failure, out) from failure


def _planned(pipeline: str, host: str, root: str, overrides: Sequence[str]) -> Plan:
    there = find_host(host, cli.HOME / "hosts.yaml")
    made = _asked(pipeline, there, overrides) if not there.chain.is_local else None
    return made or cli.planned(pipeline, host, cli.root_of(root), overrides)


def _asked(pipeline: str, host: Host, overrides: Sequence[str]) -> Plan | None:
    from dflash.hosts.failures import HostError
    from dflash.hosts.reach import reach
    from dflash.pipeline.away import NotThere, prepare

    order = order_of(pipeline, host, "", "", overrides)
    try:
        with reach(host.chain) as connection:
            return prepare(connection, order, looks_only=True).plan
    except (HostError, NotThere) as failure:
        print(f"note: {failure}", file=sys.stderr)
        return None


def follow(*, run: str, root: str, offset: int) -> None:
    """Follow a run that a host has to its end, and bring home what it made. Exits with the status of the run."""
    from dflash.pipeline.errand import load_errand

    _of_a_job("--offset", offset != 0)
    _follow(load_errand(cli.root_of(root), run), cli.root_of(root), as_json=False)


def stop(*, run: str, root: str, grace: float) -> None:
    """End every process of a run that a host has; it saves what it has first."""
    from dflash.hosts import jobs
    from dflash.hosts.failures import HostError
    from dflash.pipeline.errand import load_errand
    from dflash.pipeline.following import fetch
    from dflash.pipeline.following import stop as stop_run
    from dflash.pipeline.stopping import GRACE_S, patience_s

    _of_a_job("--grace", grace != jobs.GRACE_S)
    folder = cli.root_of(root)
    errand = load_errand(folder, run)
    last = _last(folder / "runs" / run)
    then = "".join(f", then for {name}, {seconds:.0f} s" for name, seconds in last.items())
    _tell(errand.host, f"run {run} is told to stop; waits while it saves what it has, {GRACE_S:.0f} s at most{then}")
    _tell(errand.host, f"./inv stop {run} once more ends it now")
    more = f"it may have been told: ./inv follow {run} waits for it, ./inv stop {run} once more ends it now"
    try:
        with _noted(errand, folder):
            job = stop_run(errand, patience_s(last.values()))
    except KeyboardInterrupt:
        print(f"\n{errand.host}: {more}", file=sys.stderr)
        raise
    except HostError as failure:
        failure.cure = more
        raise
    fetch(errand, job, folder / "runs" / run)
    _judge(errand, folder)
    _show(folder, run, as_json=False)
    if job.code:
        print(f"./inv resume {run} goes on with it", file=sys.stderr)


def _last(run: Path) -> dict[str, float]:
    """The last steps of the run with this folder, and the seconds that each has after a stop, as far as its plan is
    here."""
    from dflash.pipeline.stopping import last_of

    try:
        return last_of(json.loads((run / "plan.json").read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def resume(*, run: str, root: str, wait: bool, as_json: bool) -> None:
    """Go on with a run (the newest that did not end well, without `run`) as a new run of the same pipeline, and for one
    that a host had of the same source and environment, too. What is finished is not run again."""
    from dflash.pipeline.record import AWAY, load_record
    from dflash.pipeline.resuming import unfinished

    folder = cli.root_of(root)
    run = run or unfinished(folder)
    if (folder / "runs" / run / AWAY).exists():
        _resume_away(run, folder, wait, as_json)
        return
    load_record(folder, run)
    if wait:
        raise UsageError("is for a run on a host", where="--wait", cure="leave it out")
    _resume_here(run, folder, as_json)


def _resume_here(run: str, folder: Path, as_json: bool) -> None:
    from dflash.pipeline.resuming import again, goes_on_with

    plan, request = again(folder, run)
    print(goes_on_with(plan, run), file=sys.stderr)
    os.chdir(request["folder"])
    cli.run(plan, folder, request, as_json)


def _resume_away(run: str, folder: Path, wait: bool, as_json: bool) -> None:
    from dflash.hosts.reach import reach
    from dflash.pipeline.away import again
    from dflash.pipeline.errand import load_errand
    from dflash.pipeline.source import origin_of

    before = load_errand(folder, run)
    with reach(before.where.chain) as connection:
        ready = again(connection, before, origin_of(folder / "runs" / run))
        errand = _launch(connection, ready, folder, wait)
    _follow(errand, folder, as_json)


def order_of(pipeline: str, host: Host, environment: str, wheels: str, overrides: Sequence[str]) -> Order:
    """What `train` wants of a host. The environment is the one that is named, or else that of the pipeline's check."""
    from dflash.cli_environments import folder_of
    from dflash.pipeline.away import Order
    from dflash.pipeline.matrix import declared_name

    loaded = cli.load(pipeline, overrides)
    checks = [step for step in loaded.steps if step.kind.name == "check" and hasattr(step.config, "environment")]
    if environment:
        names = dict.fromkeys(declared_name(step.name) for step in checks)
        overrides = [*overrides, *(f"{name}.environment={environment}" for name in names)]
        loaded = cli.load(pipeline, overrides)
    name = environment or next((step.config.environment for step in checks), "local")
    wheelhouse = Path(wheels) if wheels else None
    return Order(loaded, tuple(overrides), host, folder_of(name), wheelhouse, inventory=cli.HOME / "hosts.yaml")


def _of_a_job(option: str, given: bool) -> None:
    if given:
        raise UsageError(
            "is for a job, not for a run", where=option, cure="name the job's host with --host, or do without"
        )


def _launch(connection: Connection, ready: Ready, root: Path, wait: bool) -> Errand:
    from dflash.pipeline.launching import launch
    from dflash.pipeline.show import show_plan

    show_plan(ready.plan, stream=sys.stderr)
    errand, _ = launch(connection, ready, root, waits=wait)
    begun = f"goes on with {ready.resumes.run}" if ready.resumes else "has started"
    _tell(errand.host, f"run {errand.run} {begun}, as job {errand.job}")
    return errand


def looked_on(errand: Errand, root: Path) -> tuple[Job, StepFailed | None]:
    """Follow a run to its end, and bring home what it made; how its job ended, and why if it failed."""
    from dflash.pipeline.following import fetch, follow
    from dflash.pipeline.view import view_for

    try:
        with _noted(errand, root):
            job, failure = follow(errand, view_for(sys.stderr))
    except KeyboardInterrupt:
        again = f"./inv follow {errand.run} looks on again, ./inv stop {errand.run} ends it"
        print(f"\n{errand.host} goes on with the run; {again}", file=sys.stderr)
        raise
    fetch(errand, job, root / "runs" / errand.run, failure)
    return job, failure


def _follow(errand: Errand, root: Path, as_json: bool) -> None:
    job, failure = looked_on(errand, root)
    _judge(errand, root)
    _show(root, errand.run, as_json)
    if failure:
        raise failure
    if job.code > 128:
        print(f"interrupted; ./inv resume {errand.run} goes on from here", file=sys.stderr)
    sys.exit(job.code)


def _judge(errand: Errand, root: Path) -> None:
    """Judge a replay that has ended well, whoever began it. That it can not be judged takes nothing of the run."""
    from dflash.pipeline.judging import judge
    from dflash.pipeline.record import load_record

    of = errand.request.get("replays")
    if of and load_record(root, errand.run)["status"] == "ok":
        try:
            judge(root, errand.run, of, errand.request["accepted"])
        except DFlashError as failure:
            print(f"note: this replay of {of} is not judged: {failure}", file=sys.stderr)


@contextlib.contextmanager
def _noted(errand: Errand, root: Path) -> Iterator[None]:
    """Of a run that never started, note that: it is not at work, as far as is known here."""
    from dflash.pipeline.following import NEVER_STARTED, NeverStarted

    try:
        yield
    except NeverStarted:
        replace(errand, ended={"state": NEVER_STARTED}).write(root / "runs" / errand.run)
        raise


def _show(root: Path, run: str, as_json: bool) -> None:
    from dflash.pipeline.record import load_record
    from dflash.pipeline.show import show_record

    record = load_record(root, run)
    if as_json:
        cli.print_json(record)
    else:
        show_record(record, str(root / "runs" / run))


def _tell(host: str, line: str) -> None:
    print(f"{host}: {line}", file=sys.stderr, flush=True)
