"""What a step is to the pipeline, and what the pipeline gives to a step."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash.errors import UsageError
from dflash.hosts.inventory import Host
from dflash.progress import Progress

DEFAULT_KINDS = "dflash.pipeline.steps:KINDS"


@dataclass(frozen=True)
class StepInputs:
    """What a running step is given.

    `config` is an instance of the kind's config, `borrowed` of the config of the step that `for_step` names
    (None without one). `inputs` and `results` hold, by kind, the output folder and the result of each needed
    step that the kind takes. `out` is the step's own folder: it keeps what an interrupted attempt left. `log` is the
    file that has what the step prints. `launcher` is the step's (launchers/config.py), and `hosts` are the machines
    that the pipeline names. `layout` is how many workers each host has of the training that it prepares for, where that
    is on several hosts (machines.layouts_of). `env` are the step's own variables, which this process has. `project` is
    where relative `inputs` begin.
    """

    config: Any
    inputs: Mapping[str, Path]
    results: Mapping[str, dict[str, Any]]
    out: Path
    root: Path
    progress: Progress
    borrowed: Any = None
    launcher: Any = None
    hosts: Mapping[str, Host] = field(default_factory=dict)
    layout: tuple[int, ...] = ()
    log: Path = Path("/dev/null")
    env: Mapping[str, str] = field(default_factory=dict)
    project: Path | None = None


@dataclass(frozen=True)
class StepKind:
    """A kind of step, as a pipeline's `uses` names it.

    `config` is a standard-library frozen dataclass. `run` imports its room when called, and returns a result
    of plain JSON values. `takes` are the kinds it must be given. `sources` are files and folders below
    dflash/ whose text decides the result. `fingerprint` hashes what it reads from outside the pipeline, and looks at
    the fields `fingerprint_of` of the config (None: any), so that it is taken once for steps that agree in them.
    `borrows` are the fields of the borrowed config that decide the result, by path (empty: all of them). `paths` are
    the fields that name a file, a folder or a pattern of files, which must be where the step runs.
    `takes_needs`: it is given every needed step, under the step's name in place of the kind's. `cached` False runs it
    each time. `gpu` tells whether a config needs a GPU. `launches`: it has workers, and a step may say how they are
    started.
    """

    name: str
    config: type
    run: Callable[[StepInputs], dict[str, Any]]
    takes: tuple[str, ...] = ()
    takes_needs: bool = False
    sources: tuple[str, ...] = ()
    fingerprint: Callable[[Any], dict[str, str]] = field(default=lambda config: {})
    fingerprint_of: tuple[str, ...] | None = None
    borrows: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    cached: bool = True
    gpu: Callable[[Any], bool] = field(default=lambda config: False)
    launches: bool = False
    describes: str = ""


def load_kinds(path: str = DEFAULT_KINDS) -> Mapping[str, StepKind]:
    """The kinds at an import path `module:NAME`. Imported late, so that verbs without steps start at once."""
    module, _, name = path.partition(":")
    kinds: Mapping[str, StepKind] = getattr(importlib.import_module(module), name)
    if not kinds:
        raise UsageError("no kinds of steps are known", where=path)
    return kinds
