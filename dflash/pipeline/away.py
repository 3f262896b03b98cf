"""Send a run to another machine: everything that it takes there, then its runner as a detached job.

The runner itself is there, and what is here only looks on: nothing of a run is left to the caller. What is there
already is not sent again, so that a second run starts at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from dflash.environments.installed import parse_stamp
from dflash.environments.lock import read_lock
from dflash.environments.remote import ID_LENGTH, HostEnvironments, Tell
from dflash.errors import UsageError, storage_error
from dflash.hosts.connection import Connection
from dflash.hosts.inventory import DEFAULT_ROOT, Host
from dflash.hosts.package import send_files, where
from dflash.pipeline import leaks
from dflash.pipeline.answer import planned
from dflash.pipeline.belongings import Belonging, Parcel, belongings, look, override, parcel, place_of, require, send
from dflash.pipeline.errand import Errand
from dflash.pipeline.fitness import require_fit
from dflash.pipeline.keys import HOME
from dflash.pipeline.kinds import DEFAULT_KINDS
from dflash.pipeline.lock import Owner
from dflash.pipeline.machines import machines_of
from dflash.pipeline.plan import Plan
from dflash.pipeline.policy import IDLE
from dflash.pipeline.project import inputs_of, patterns_of
from dflash.pipeline.redaction import SHORTEST, taken
from dflash.pipeline.request import request_of
from dflash.pipeline.schema import Pipeline
from dflash.pipeline.source import Origin, changed, snapshot

IMAGE = "/opt/env"
"""Where an image has its environment (docker/environment.sh)."""


@dataclass(frozen=True)
class Order:
    """What is wanted: a checked pipeline with the `overrides` that it was read with, on a host, in the environment that
    is declared in a folder, made of `wheels` where it is not there. Other hosts that it names are those of `inventory`.
    `check` is called before anything is done there, and raises what keeps a run from starting. `source` is what
    `snapshot` gives, of now where there is none, and `more` what else the request says (dflash/pipeline/request.py)."""

    pipeline: Pipeline
    overrides: tuple[str, ...]
    host: Host
    environment: Path
    wheels: Path | None = None
    kinds: str = DEFAULT_KINDS
    inventory: Path = HOME / "hosts.yaml"
    check: Callable[[Host, Pipeline, Mapping[str, Host]], object] = require_fit
    source: tuple[bytes, Origin] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ready:
    """Everything is there: `plan` is what would be done, and `held` who is at work in that root. `resumes` is the
    errand that this goes on with, if it does. `lock` is as in an Errand."""

    host: Host
    environment: str
    generation: str
    python: str
    source: str
    origin: Origin
    request: Mapping[str, Any]
    plan: Plan
    held: Owner | None
    resumes: Errand | None = None
    lock: str = ""


class NotThere(UsageError):
    """Something that a run takes is not at its host yet."""


def prepare(connection: Connection, order: Order, tell: Tell = lambda line: None, *, looks_only: bool = False) -> Ready:
    """Have all that a run takes at its host: environment, source, data; and plan it there. `tell` gets a line for each
    thing that takes a while. With `looks_only` nothing is put there but the source.

    Raises:
        UsageError: a path of the pipeline is nowhere, the source can not be told, or what is sent would show a secret;
            nothing has been done then. Data was changed meanwhile. A step that will run has a secret that is not set
            (not with `looks_only`).
        NotThere: `looks_only`, and the environment or some data would have to be put there first.
        DFlashError: what `order.check` raises. EnvironmentMismatch: the environment can not be made there.
        HostError: the host, or something can not be written there. StorageError: something can not be read here.
    """
    secrets = leaks.hidden_of(order.pipeline)
    unknown = leaks.names_of(order.pipeline) - {*secrets}
    leaks.refuse_in_settings(secrets, order.pipeline)
    if not looks_only:
        for name in sorted(unknown):
            tell(_unless_finished(name, order.pipeline))
    found = list(belongings(order.pipeline))
    parcels = {each: parcel(each) for each in found if not each.is_there}
    home, there = look(connection, [each.name for each in found if each.is_there])
    require(found, there, connection.layer)
    data = [path for packed in parcels.values() for path in packed.files.values()]
    content, origin = order.source or snapshot(without=data)
    sources = dict(leaks.packed(content))
    leaks.refuse_in_source(secrets, sources.items(), "sent")
    leaks.refuse_set_in_source(unknown, sources.items(), "sent")
    inputs = [(each, parcel(each)) for each in inputs_of(patterns_of(order.pipeline), sources)]
    if (secrets or unknown) and origin.patch and not order.source:
        differs = changed(without=data)
        leaks.refuse_in_source(secrets, differs, "recorded")
        leaks.refuse_set_in_source(unknown, differs, "recorded")
    going: list[tuple[Belonging, Parcel]] = [*parcels.items(), *inputs]
    _refuse_in_parcels(secrets, going)
    root = order.host.root or DEFAULT_ROOT.replace("~", home, 1)
    host = replace(order.host, root=root)
    hosts = machines_of(order.pipeline, host, order.inventory)
    if not looks_only:
        order.check(host, order.pipeline, hosts)
    generation, python, lock = _environment(connection, host, order, tell, looks_only)
    source = send_files(connection, host, content)
    _, kept = look(connection, [place_of(root, each) for _, each in going])
    for belonging, packed in going:
        if not kept[place_of(root, packed)]:
            if looks_only:
                raise NotThere(f"{belonging.name} has not been sent yet", where=connection.layer)
            tell(f"sending {belonging.name}")
            send(connection, root, belonging, packed)
    moved = [override(belonging, root, packed) for belonging, packed in parcels.items()]
    request = request_of(order.pipeline, [*order.overrides, *moved], host, order.kinds, hosts=hosts) | {**order.more}
    if inputs:
        request["inputs"] = [{"place": place_of(root, packed), "up": each.up} for each, packed in inputs]
    plan, held = planned(connection, host, python, source, request)
    if not looks_only:
        secrets_of_plan(plan)
    name = order.environment.name
    return Ready(host, name, generation, python, source, origin, request, plan, held, lock=lock)


def _unless_finished(name: str, pipeline: Pipeline) -> str:
    """What it means that a secret can not be given to the steps that name it."""
    first, *others = [step.name for step in pipeline.steps if name in step.secrets]
    what = f"has fewer than {SHORTEST} characters" if os.environ.get(name) else "is not set"
    steps = f"step {first} and {len(others)} more are" if others else f"step {first} is"
    return f"the secret {name} {what}: unless {steps} finished there, nothing will start"


def _refuse_in_parcels(secrets: Mapping[str, str], going: Iterable[tuple[Belonging, Parcel]]) -> None:
    try:
        leaks.refuse_in_inputs(secrets, (path for _, packed in going for path in packed.files.values()))
    except OSError as failure:
        raise storage_error(failure, failure.filename or HOME) from failure


def again(connection: Connection, errand: Errand, origin: Origin) -> Ready:
    """What a run took, ready once more: the same source, whose origin is known, generation, pipeline and data.

    Raises:
        UsageError: the source or the generation is not there any more.
        HostError: the host.
    """
    host = errand.where
    request = {name: value for name, value in errand.request.items() if name != "sender"} | {"resumes": errand.run}
    source = where(connection, host, PurePosixPath(errand.source).name)
    _, there = look(connection, [errand.python])
    is_there = there[errand.python]
    if errand.lock:
        prefix = str(PurePosixPath(errand.python).parents[1])
        is_there = is_there and image_python(connection, errand.lock, prefix) == errand.python
    if not is_there or not source:
        name = f"{errand.environment} {errand.generation}" if errand.generation else errand.python
        gone = "source" if is_there else f"environment {name}"
        cure = "./inv train --host with the same options starts anew, and skips what is finished"
        raise UsageError(f"the {gone} of run {errand.run} is not there any more", where=errand.chain, cure=cure)
    plan, held = planned(connection, host, errand.python, source, request)
    name, generation = errand.environment, errand.generation
    return Ready(host, name, generation, errand.python, source, origin, request, plan, held, errand, errand.lock)


def secrets_of_plan(plan: Plan) -> dict[str, str]:
    """The secrets of what will run, from the environment here. Raises UsageError for one that is not set."""
    found: dict[str, str] = {}
    for each in plan.steps:
        if each.status not in IDLE:
            found |= taken(each.fields.get("secrets", ()), os.environ, f"step {each.step.name}")
    return found


def _environment(
    connection: Connection, host: Host, order: Order, tell: Tell, looks_only: bool
) -> tuple[str, str, str]:
    """The generation of the declared lock there, the one in use before others, and its Python. On this machine it is
    the environment that runs this; in a container of an image that was built from that lock, the image's, and its
    lock."""
    if host.chain.is_local:
        return "", sys.executable, ""
    name, environments = order.environment.name, HostEnvironments(connection, host, tell)
    lock = read_lock(order.environment / "requirements.lock").id[:ID_LENGTH]

    if python := image_python(connection, lock):
        return "", python, lock

    def made() -> list[dict[str, Any]]:
        rows = [row for row in environments.listed(name) if row["finished"] and row["id"].split("-")[0] == lock]
        return sorted(rows, key=lambda row: bool(row["current"]))

    rows = made()
    if not rows:
        if looks_only:
            raise NotThere(f"the environment {name} ({lock}) has not been made yet", where=connection.layer)
        tell(f"making the environment {name} ({lock})")
        environments.use(name, environments.create(order.environment, wheels=order.wheels).id)
        rows = made()
    return rows[-1]["id"], f"{rows[-1]['path']}/bin/python", ""


def image_python(connection: Connection, lock: str, prefix: str = IMAGE) -> str:
    """The Python of an image's own environment, if that was made from a lock whose id begins with `lock`; or ""."""
    stamp = parse_stamp(connection.run(["cat", f"{prefix}/dflash-stamp"]).stdout.decode(errors="replace"))
    return f"{prefix}/bin/python" if stamp.get("lock", "").startswith(lock) else ""
