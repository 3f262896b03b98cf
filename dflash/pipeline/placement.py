"""Where a step runs, and how its workers are started, as declared."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from dflash.document import Document, Place
from dflash.errors import ChainError, UsageError
from dflash.hosts.chain import looks_like_chain, parse_chain
from dflash.hosts.inventory import NAME
from dflash.pipeline.declaration import Declared
from dflash.pipeline.kinds import StepKind
from dflash.pipeline.launchers.config import LAUNCHERS, Slurm, Threads, Torchrun, refuse_threads
from dflash.pipeline.launchers.slurmqueue import workers_per_node
from dflash.training.config import TrainConfig
from dflash.validation import suggestion, validated


def host_of(value: Any, document: Document, place: Place) -> str | None:
    """A step's host: a name as the inventory may have it, or a chain. Whether it is there is not asked.

    Raises ConfigError.
    """
    if value is None:
        return None
    text = str(value)
    if looks_like_chain(text):
        try:
            parse_chain(text)
        except ChainError as failure:
            what = f"{failure.where}: {failure.what}" if failure.where else failure.what
            raise document.error(what, place, cure=failure.cure) from None
    elif not re.fullmatch(NAME, text, re.ASCII):
        cure = "write a name of hosts.yaml, or a chain such as ssh:root@gpu1/pct:200"
        raise document.error(f"{text!r} names no host", place, cure=cure)
    return text


def launcher_of(value: Any, kind: StepKind, step: Declared, document: Document) -> Any:
    """How a step's workers are started: one of LAUNCHERS, or None where nothing is declared. Raises ConfigError."""
    if value is None:
        return None
    place: Place = (*step.place, "launcher")
    if not kind.launches:
        what = f"a step of kind {kind.name!r} has no workers to start"
        raise document.error(what, place, key=True, cure="give the launcher to the step that trains")
    if isinstance(value, dict):
        options = {key: each for key, each in value.items() if key != "kind"}
        name, where = value.get("kind"), (*place, "kind")
    else:
        options, name, where = {}, value, place
    if not isinstance(name, str) or name not in LAUNCHERS:
        cure = suggestion(str(name or ""), LAUNCHERS, "launchers")
        raise document.error(f"there is no launcher {name!r}" if name else "say its kind", where, cure=cure)
    launcher = validated(LAUNCHERS[name], document, place, options)
    hosts = getattr(launcher, "hosts", ())
    for number, host in enumerate(hosts):
        host_of(host, document, (*place, "hosts", number))
        if host in hosts[:number]:
            raise document.error(f"{host!r} is named twice", (*place, "hosts", number), cure="remove one")
    return launcher


def refuse_misplaced(
    step: Declared, host: str | None, launcher: Any, inputs: Sequence[str], config: Any, document: Document
) -> None:
    """Raise ConfigError for what a step declares, or is set to, that can not be where its host or launcher puts it: it
    would be said only once the step starts, after all that it needs."""
    entry = step.entry
    hosts = launcher.hosts if isinstance(launcher, Torchrun) else ()
    if host and hosts:
        cure = "remove its host: the launcher's say where its workers run"
        raise document.error("its launcher names hosts, too", (*step.place, "host"), key=True, cure=cure)
    if host and any(map(os.path.isabs, inputs)):
        cure = (
            "name them by paths that are relative to the project's folder: those are brought there; or remove its host"
        )
        what = "an absolute path of this machine is not one of the step's host"
        raise document.error(what, (*step.place, "inputs"), key=True, cure=cure)
    if entry.secrets and (host or hosts or isinstance(launcher, Slurm)):
        where = "in a Slurm job, whose variables Slurm writes to files," if isinstance(launcher, Slurm) else "elsewhere"
        what, cure = f"a step {where} is given no secrets", "leave its secrets out, or let it run where the run is"
        raise document.error(what, (*step.place, "secrets"), key=True, cure=cure)
    if isinstance(config, TrainConfig):
        _refuse_shared_badly(step, launcher, config, document)


def _refuse_shared_badly(step: Declared, launcher: Any, config: TrainConfig, document: Document) -> None:
    place: Place = (*step.place, "with", "topology", "target_gpus")
    try:
        if launcher is None or isinstance(launcher, Threads):
            refuse_threads(config)
        elif isinstance(launcher, Slurm):
            place = (*step.place, "launcher", "nodes")
            workers_per_node(launcher, config.topology)
    except UsageError as failure:
        raise document.error(failure.what, place, cure=failure.cure) from None


def refuse_launcher_in_settings(step: Declared, kind: StepKind, document: Document) -> None:
    """Raise ConfigError for a launcher under `with`, where it was of old."""
    if kind.launches and "launcher" in step.entry.with_:
        cure = "write launcher: torchrun (or threads, or slurm) beside with:"
        raise document.error("the launcher is the step's own", (*step.place, "with", "launcher"), key=True, cure=cure)
