"""What a step's outcome depends on, and the key made of it."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import dflash
from dflash.environments.installed import parse_stamp
from dflash.errors import UsageError, storage_error
from dflash.pipeline.files import canonical, digest, file_digest
from dflash.pipeline.schema import Pipeline, Step
from dflash.validation import plain

HOME = Path(dflash.__file__).resolve().parents[1]
"""The folder of this project: where pipelines/, envs/ and tasks.py lie."""

PACKAGE = HOME / "dflash"


@dataclass(frozen=True)
class Surroundings:
    """What decides a result besides the pipeline's file: all plain text, so that keys are a pure function. What is done
    `apart`, under a name of its own, shares no folder with anything else: it is all done again."""

    lock: str
    python: str
    sources: Mapping[str, Mapping[str, str]]  # kind -> source file -> hash
    fingerprints: Mapping[str, Mapping[str, str]]  # step -> outside input -> hash
    apart: str = ""


def lock_id(home: Path = HOME, prefix: Path = Path(sys.prefix)) -> str:
    """SHA-256 of the lock of the environment that this runs in; empty when there is none. A generation (of any name)
    keeps its own lock, and an image's environment, like `.venv`, a stamp that says it."""
    if (prefix / "requirements.lock").is_file():
        return file_digest(prefix / "requirements.lock")
    with contextlib.suppress(FileNotFoundError):
        if lock := parse_stamp((prefix / "dflash-stamp").read_text(encoding="utf-8")).get("lock"):
            return lock
    declared = home / "envs" / "local" / "requirements.lock"
    return file_digest(declared) if declared.is_file() else ""


def observe(pipeline: Pipeline, home: Path = HOME, package: Path = PACKAGE) -> Surroundings:
    """Read the surroundings on this machine. Raises StorageError, or what a fingerprint raises."""
    known: dict[Path, str] = {}
    try:
        return Surroundings(
            lock=lock_id(home),
            python=platform.python_version(),
            sources={step.kind.name: _sources(step.kind.sources, package, known) for step in pipeline.steps},
            fingerprints={step.name: step.kind.fingerprint(step.config) for step in pipeline.steps},
        )
    except OSError as failure:
        raise storage_error(failure) from failure


def _sources(names: tuple[str, ...], package: Path, known: dict[Path, str]) -> dict[str, str]:
    digests: dict[str, str] = {}
    for name in names:
        place = package / name
        if not place.exists() and place.with_suffix(".py").exists():
            place = place.with_suffix(".py")
        if not place.exists():
            raise UsageError(f"a kind of step names the source {name!r}, which is not there", where=str(place))
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if file not in known:
                known[file] = file_digest(file)
            digests[file.relative_to(package).as_posix()] = known[file]
    return digests


def key_fields(step: Step, pipeline: Pipeline, surroundings: Surroundings, keys: Mapping[str, str]) -> dict[str, Any]:
    """The fields that make the step's key; `keys` are those of the steps it takes from, by step name.

    A need that the kind does not take only orders the steps, so it is not among them.
    """
    return {
        "kind": step.kind.name,
        "config": plain(step.kind.config, step.config),
        "borrowed": _borrowed(step, pipeline.step(step.borrows)) if step.borrows else None,
        "lock": surroundings.lock,
        "python": surroundings.python,
        "sources": dict(surroundings.sources[step.kind.name]),
        "inputs": {kind: keys[name] for kind, name in step.takes.items()},
        "fingerprint": dict(surroundings.fingerprints[step.name]),
        **({"apart": surroundings.apart} if surroundings.apart else {}),
    }


def _borrowed(step: Step, lender: Step) -> dict[str, Any]:
    config = plain(lender.kind.config, lender.config)
    return {path: reduce(getitem, path.split("."), config) for path in step.kind.borrows or config}


def key_of(fields: Mapping[str, Any]) -> str:
    """SHA-256 of the fields. The attempt is no field: a second attempt's result is as good."""
    return digest(canonical(fields))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What changed between two steps' fields, each as `path: old -> new`, in the order of the fields."""
    before, after = _flat(old), _flat(new)
    lines = []
    for path in dict.fromkeys([*after, *before]):
        if path not in before:
            lines.append(f"{path}: added, {_short(after[path])}")
        elif path not in after:
            lines.append(f"{path}: removed, was {_short(before[path])}")
        elif before[path] != after[path]:
            lines.append(f"{path}: {_short(before[path])} -> {_short(after[path])}")
    return lines


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        return {
            inner: leaf
            for name, each in value.items()
            for inner, leaf in _flat(each, f"{path}.{name}" if path else str(name)).items()
        }
    return {path: value} if path and value != {} else {}


def _short(value: Any) -> str:
    if isinstance(value, str):
        is_hash = len(value) == 64 and not set(value) - set("0123456789abcdef")
        text = value[:12] if is_hash else value or "none"
        return text if len(text) <= 60 else text[:57] + "..."
    return canonical(value)[:60]
