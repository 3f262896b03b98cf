"""A plan that another machine made, as it tells it (dflash/pipeline/far.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dflash.environments.programs import Errors, HostPrograms
from dflash.errors import DataError, EnvironmentMismatch, StorageError, UsageError
from dflash.hosts.connection import Connection
from dflash.hosts.inventory import Host
from dflash.pipeline.changes import Change
from dflash.pipeline.kinds import StepInputs, StepKind
from dflash.pipeline.lock import Owner
from dflash.pipeline.plan import Plan, PlannedStep
from dflash.pipeline.policy import Limits
from dflash.pipeline.schema import Pipeline, Step

_ERRORS: Errors = {2: UsageError, 3: EnvironmentMismatch, 4: DataError, 5: StorageError}


def planned(
    connection: Connection, host: Host, python: str, source: str, request: Mapping[str, Any]
) -> tuple[Plan, Owner | None]:
    """The plan of what was requested, with the source at `source`, and who is at work in that root.

    Raises:
        DFlashError: what planning it there raises. HostError: the host.
    """
    programs = HostPrograms(connection, host, python=python, package=source)
    words = ("dflash.pipeline.far", "plan", programs.root)
    answer = json.loads(programs.run(*words, errors=_ERRORS, stdin=json.dumps(request).encode()))
    return plan_of(answer["plan"], request["pipeline"]["name"], host), answer["held"] and Owner(**answer["held"])


def read_there(
    connection: Connection, host: Host, python: str, source: str, request: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    """The SHA-256 of each file that the steps of what was requested read there, by step and name; otherwise as
    `planned`."""
    programs = HostPrograms(connection, host, python=python, package=source)
    words = ("dflash.pipeline.far", "data", programs.root)
    answer = programs.run(*words, errors=_ERRORS, stdin=json.dumps(request).encode())
    found: dict[str, dict[str, str]] = json.loads(answer)
    return found


def plan_of(told: Mapping[str, Any], file: str, host: Host) -> Plan:
    """The plan that was made there, to be shown and kept: what there is of kinds here may be older, or newer."""
    steps = tuple(_step(each) for each in told["steps"])
    pipeline = Pipeline(told["pipeline"], told["description"], file, tuple(each.step for each in steps))
    return Plan(pipeline, host, steps)


def _step(told: Mapping[str, Any]) -> PlannedStep:
    kind = StepKind(told["uses"], dict, _is_elsewhere, describes=told["describes"])
    declared = {name: told[name] for name in ("matrix", "when", "is_last") if name in told}
    declared["limits"] = Limits(told.get("timeout_s"))
    step = Step(told["name"], kind, tuple(told["needs"]), told["config"], {}, None, **declared)
    found = tuple(Change(**each) for each in told.get("changes", ()))
    gpus = told.get("gpus", int(told["needs_gpu"]))
    return PlannedStep(step, told["fields"], told["key"], told["status"], tuple(told["why"]), gpus, found)


def _is_elsewhere(inputs: StepInputs) -> dict[str, Any]:
    raise AssertionError(f"a step of another machine is not run here: {inputs.out}")
