"""What a run is about to write down or to send is searched for its secrets, and a run that would show one never begins.

What is said while a run goes on is hidden (dflash/pipeline/redaction.py). Its source and its settings are of use only
as they are, so there a secret is refused; of one in what a step makes a person is told. Without secrets nothing is
read.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dflash.errors import UsageError, storage_error
from dflash.hosts import unpacking
from dflash.pipeline.provenance.variables import without_credentials
from dflash.pipeline.redaction import set_of, telling
from dflash.pipeline.schema import Pipeline
from dflash.pipeline.source import AS_COMMITTED, Origin, changed
from dflash.pipeline.store import outputs_in
from dflash.validation import plain

Told = tuple[str, bytes]
"""A content by what it is called."""


def refuse_recorded(pipeline: Pipeline, text: str | None, source: Origin, data: Collection[Path]) -> None:
    """Raise UsageError where the record of a run here would show one of its secrets: `text` is as in
    `refuse_in_settings`, and files that are `data` are not among its source. Raises StorageError, or OSError."""
    secrets = hidden_of(pipeline)
    refuse_in_settings(secrets, pipeline, text)
    if secrets and source.patch:
        refuse_in_source(secrets, changed(without=data), "recorded")


def hidden_of(pipeline: Pipeline) -> dict[str, str]:
    """The secrets that a pipeline names, by name, as far as they are set here: of steps that do not run, too."""
    return set_of((name for step in pipeline.steps for name in step.secrets), os.environ)


def refuse_in_source(secrets: Mapping[str, str], files: Iterable[Told], becomes: str) -> None:
    """Raise UsageError for the first of `files` that holds one of `secrets`, values by name, or is called by it."""
    if not secrets:
        return
    told = (each for name, content in files for each in ((_NAME, os.fsencode(name)), (name, content)))
    for secret, place, line in _found(secrets, told):
        at = place if place == _NAME else f"{place}:{line}"
        what = f"secret {secret} is in {at}, which would be {becomes} with the source"
        cure = "commit what takes it out" if place.endswith(AS_COMMITTED) else "add it to .gitignore or take it out"
        raise UsageError(what, cure=cure)


_NAME = "a file's name"


def refuse_in_settings(secrets: Mapping[str, str], pipeline: Pipeline, text: str | None = None) -> None:
    """Raise UsageError where a pipeline, of which `text` is the file's (None: as it is now), or the words that a run is
    asked for with, hold one of `secrets`. Raises StorageError."""
    if not secrets:
        return
    cure = "take it out: a step that names it under secrets is given it as a variable"
    try:
        content = Path(pipeline.file).read_bytes() if text is None else text.encode()
    except OSError as failure:
        raise storage_error(failure, pipeline.file) from failure
    overrides = [(f"--set {each.partition('=')[0]}=…", os.fsencode(each)) for each in pipeline.overrides]
    for secret, place, line in _found(secrets, [*overrides, (pipeline.file, content), *_settings(pipeline)]):
        at = f"{place}:{line}" if place == pipeline.file else place
        raise UsageError(f"secret {secret} is in {at}, which the run's record would have", cure=cure)


def _settings(pipeline: Pipeline) -> Iterator[Told]:
    """Whatever the file's quotes and escapes make of them."""
    for step in pipeline.steps:
        declared = {"with": plain(step.kind.config, step.config), "env": dict(step.env), "matrix": dict(step.matrix)}
        declared |= {"inputs": step.inputs, "outputs": step.outputs, "when": step.when}
        yield f"the settings of step {step.name}", json.dumps(declared, default=str).encode()
    yield "the command line", os.fsencode("\n".join(map(without_credentials, sys.argv)))


def packed(content: bytes) -> Iterator[Told]:
    """The files that `unpacking.packed` made `content` of."""
    return ((os.fsdecode(name), each) for name, _, each in unpacking.files(content))


def notes_of_outputs(secrets: Mapping[str, str], out: Path) -> Iterator[str]:
    """A line for each of `secrets` that is in what a step has made in its folder: the first file, and how many others.
    That is the step's own, and no fault, but it is kept, and other steps read it. Raises OSError."""
    forms = {name: telling(value) for name, value in secrets.items()}
    shown: dict[str, list[str]] = {}
    for name, path, status in outputs_in(out) if any(forms.values()) else ():
        if stat.S_ISREG(status.st_mode) and status.st_size <= MOST_BYTES:
            for secret in _in_file(path, forms):
                shown.setdefault(secret, []).append(name)
    for secret, names in shown.items():
        others = f", and {len(names) - 1} more do" if len(names) > 1 else ""
        yield f"its output {names[0]} holds the secret {secret}{others}: whoever gets it can read that"


MOST_BYTES = 64 << 20
"""Of an output that is searched: what is larger is weights or data."""

_CHUNK = 1 << 20


def _in_file(path: Path, forms: Mapping[str, Sequence[bytes]]) -> list[str]:
    """Which secrets are in a file, of which one piece at a time is in memory."""
    keep = max(len(form) for each in forms.values() for form in each) - 1
    found, rest = dict.fromkeys(forms, False), b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            piece = rest + chunk
            for secret, each in forms.items():
                found[secret] = found[secret] or any(form in piece for form in each)
            rest = piece[-keep:]
    return [secret for secret, is_there in found.items() if is_there]


def _found(secrets: Mapping[str, str], told: Iterable[Told]) -> Iterator[tuple[str, str, int]]:
    """Which secret is in which content, and on which line of it."""
    forms = {name: telling(value) for name, value in secrets.items()}
    for place, content in told:
        for secret, each in forms.items():
            places = (content.find(form) for form in each)
            if (at := next((at for at in places if at >= 0), None)) is not None:
                yield secret, place, content.count(b"\n", 0, at) + 1
