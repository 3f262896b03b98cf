"""What a step's outcome depends on, and the key made of it."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import platform
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import dflash
from dflash.atomic import sha256
from dflash.environments.installed import parse_stamp
from dflash.errors import DFlashError, StepFailed, UsageError, storage_error
from dflash.pipeline.changes import changes
from dflash.pipeline.files import canonical, digest, file_digest
from dflash.pipeline.matrix import declared_name
from dflash.pipeline.provenance.packages import packages
from dflash.pipeline.schema import Pipeline, Step, borrowed, error_at
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
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # step -> file of its `inputs` -> hash
    apart: str = ""


def stamped_lock(prefix: Path = Path(sys.prefix)) -> str:
    """SHA-256 of the lock that the environment which this runs in was made from, as it says itself: a generation (of
    any name) keeps its own lock, and an image's environment, like `.venv`, a stamp. Empty where it does not say: a
    Python that is no environment of this project."""
    if (prefix / "requirements.lock").is_file():
        return file_digest(prefix / "requirements.lock")
    with contextlib.suppress(FileNotFoundError):
        return parse_stamp((prefix / "dflash-stamp").read_text(encoding="utf-8")).get("lock", "")
    return ""


def lock_id(prefix: Path = Path(sys.prefix)) -> str:
    """What keys have of the environment which this runs in: its lock; of a Python that is no environment of this
    project a hash of the packages in it, so that it shares no result with an environment."""
    return stamped_lock(prefix) or digest(canonical(packages()))


def observe(pipeline: Pipeline, home: Path = HOME, package: Path = PACKAGE) -> Surroundings:
    """Read the surroundings on this machine. A pattern of `inputs` is looked for below `home`, the project's folder.

    Raises StorageError, ConfigError for `inputs` that match nothing, or what a fingerprint raises.
    """
    known: dict[Path, str] = {}
    contents: dict[Path, str] = {}
    kinds = {step.kind.name: step.kind for step in pipeline.steps}
    try:
        return Surroundings(
            lock=lock_id(),
            python=platform.python_version(),
            sources={name: _sources(kind.sources, package, known) for name, kind in kinds.items()},
            fingerprints=_fingerprints(pipeline),
            files={step.name: _files(step, pipeline, home, contents) for step in pipeline.steps if step.inputs},
        )
    except OSError as failure:
        raise storage_error(failure) from failure


def _fingerprints(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    """Each is taken once for all steps whose configs are the same to it: one may read many files. One that looks at no
    config is of the machine, and says nothing of a step's host, whose name stands for it."""
    taken: dict[tuple[str, str], dict[str, str]] = {}
    found = {}
    for step in pipeline.steps:
        config, fields = plain(step.kind.config, step.config), step.kind.fingerprint_of
        of = step.kind.name, canonical(config if fields is None else [config[name] for name in fields])
        if of not in taken:
            try:
                taken[of] = step.kind.fingerprint(step.config)
            except (DFlashError, OSError) as failure:
                raise _placed(failure, step, pipeline) from failure
        is_elsewhere = bool(step.host and taken[of] and fields == ())
        found[step.name] = taken[of] | ({"host": str(step.host)} if is_elsewhere else {})
    return found


def _placed(caught: DFlashError | OSError, step: Step, pipeline: Pipeline) -> DFlashError:
    """The failure to read what a setting names, with that setting and its place."""
    failure = storage_error(caught) if isinstance(caught, OSError) else caught
    for path in step.kind.paths:
        name = functools.reduce(getattr, path.split("."), step.config)
        if name and failure.where and str(Path(failure.where)).startswith(str(Path(name))):
            setting = f"{declared_name(step.name)}.{path}"
            place = error_at(pipeline, step, ("with", *path.split(".")), "", None).where
            failure.where = f"{place}: {setting}: {failure.where}"
            failure.cure = f"{failure.cure}, or name another: --set {setting}=PATH"
            break
    return failure


def require_unchanged(step: Step, pipeline: Pipeline, fields: Mapping[str, Any], home: Path = HOME) -> None:
    """Look at what a step has read from outside once more: its result may be of neither of two contents.

    Raises StepFailed where that is not what the `fields` of its key say, and else what `observe` does.
    """
    if step.is_last or not step.kind.cached:  # it is never skipped
        return
    now = {"fingerprint": step.kind.fingerprint(step.config), "files": _files(step, pipeline, home, {})}
    _require_same(step, fields, now, "run it again: ./inv resume")


def require_source(step: Step, fields: Mapping[str, Any], package: Path = PACKAGE) -> None:
    """Look at the source that decides a step's result once more. Its processes import what they need when they need it,
    hours after the run was planned perhaps: a result that was made by other code than its key says would be skipped
    wrongly ever after. What such a step has made stays in its folder: with the source as it was, it goes on from there.

    Raises StepFailed where it is not what the `fields` of its key say, StorageError.
    """
    if step.is_last or not step.kind.cached:
        return
    try:
        now = {"sources": _sources(step.kind.sources, package, {})}
    except OSError as failure:
        raise storage_error(failure) from failure
    _require_same(step, fields, now, "undo that and go on: ./inv resume; or start anew with it: ./inv train")


def _require_same(step: Step, fields: Mapping[str, Any], now: Mapping[str, Any], cure: str) -> None:
    if found := changes({name: fields.get(name, {}) for name in now}, now):
        what = f"what it reads was changed after the run was planned: {found[0]}"
        raise StepFailed(what, status=1, where=f"step {step.name}", cure=cure)


def _files(step: Step, pipeline: Pipeline, home: Path, known: dict[Path, str]) -> dict[str, str]:
    """The hash of each file that a step's `inputs` name: files, all that is in folders, and what patterns match."""
    digests: dict[str, str] = {}
    for pattern in step.inputs:
        files = files_of(pattern, home)
        if not files:
            cure = "check it: what is relative begins in the project's folder; or remove it"
            raise error_at(pipeline, step, ("inputs",), f"no file matches {pattern!r}", cure, pattern)
        for file in files:
            if file not in known:
                known[file] = sha256(file)
            name = os.fsencode(file.relative_to(home) if file.is_relative_to(home) else file)
            digests[name.decode(errors="backslashreplace")] = known[file]
    return digests


def files_of(pattern: str, home: Path = HOME) -> list[Path]:
    """The files that a name or a pattern of `inputs` means, but what Python compiles beside them. Raises OSError."""
    found = {file for place in _named(pattern, home) for file in _files_in(place)}
    return sorted(file for file in found if "__pycache__" not in file.parts)


def _named(pattern: str, home: Path) -> list[Path]:
    """What a name or a pattern means; a name may have a pattern's characters in it."""
    if (home / pattern).exists():
        return [home / pattern]
    return [home / each for each in glob.iglob(pattern, root_dir=home, recursive=True)]


def _files_in(place: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """The file, or all files in a folder and in those that it links to; not again in one that it is itself in."""
    if place.is_file():
        yield place
    elif place.is_dir() and (real := place.resolve()) not in above:
        for each in place.iterdir():
            yield from _files_in(each, (*above, real))


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


Layouts = Mapping[str, Sequence[int]]
"""As machines.layouts_of gives them."""


def keyed(
    pipeline: Pipeline, surroundings: Surroundings, layouts: Layouts = MappingProxyType({})
) -> dict[str, tuple[str, dict[str, Any]]]:
    """The key of each step and the fields that make it, by the step's name.

    Steps that would have one key are done each for itself: their names and hosts tell them apart. No other key has
    these, so that what is finished is found wherever it was made, and by whatever step.
    """
    alone = _keyed(pipeline, surroundings, layouts, ())
    count = Counter(key for key, _ in alone.values())
    twins = {name for name, (key, _) in alone.items() if count[key] > 1}
    return _keyed(pipeline, surroundings, layouts, twins) if twins else alone


def _keyed(
    pipeline: Pipeline, surroundings: Surroundings, layouts: Layouts, twins: Collection[str]
) -> dict[str, tuple[str, dict[str, Any]]]:
    keys: dict[str, str] = {}
    found = {}
    for step in pipeline.steps:
        fields = key_fields(step, pipeline, surroundings, keys)
        if step.name in layouts:
            fields["layout"] = list(layouts[step.name])
        if step.name in twins:
            fields |= {"step": step.name} | ({"host": step.host} if step.host else {})
        keys[step.name] = key_of(fields)
        found[step.name] = keys[step.name], fields
    return found


def key_fields(step: Step, pipeline: Pipeline, surroundings: Surroundings, keys: Mapping[str, str]) -> dict[str, Any]:
    """The fields that make the step's key; `keys` are those of the steps it takes from, by step name.

    A need that the kind does not take only orders the steps, so it is not among them. Of what a step declares, what
    may decide its result is: its files and patterns of outputs, its variables, and of its secrets the names.
    """
    declared = {
        "files": dict(surroundings.files.get(step.name, {})),
        "outputs": sorted(set(step.outputs)),
        "env": dict(step.env),
        "secrets": sorted(set(step.secrets)),
    }
    return {
        "kind": step.kind.name,
        "config": plain(step.kind.config, step.config),
        "borrowed": borrowed(step, pipeline.step(step.borrows)) if step.borrows else None,
        "lock": surroundings.lock,
        "python": surroundings.python,
        "sources": dict(surroundings.sources[step.kind.name]),
        "inputs": {kind: keys[name] for kind, name in step.takes.items()},
        "fingerprint": dict(surroundings.fingerprints[step.name]),
        **{name: value for name, value in declared.items() if value},  # without them, a key is what it always was
        **({"apart": surroundings.apart} if surroundings.apart else {}),
    }


def key_of(fields: Mapping[str, Any]) -> str:
    """SHA-256 of the fields. The attempt is no field: a second attempt's result is as good."""
    return digest(canonical(fields))
