"""What a run is about to write down or to send is searched for its secrets, and a run that would show one never begins.

What is said while a run goes on is hidden (dflash/pipeline/redaction.py). Its source and its settings are of use only
as they are, so there a secret is refused; of one in what a step makes a person is told. Without secrets nothing is
read.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dflash.errors import UsageError, storage_error
from dflash.hosts import unpacking
from dflash.pipeline.belongings import belongings_of
from dflash.pipeline.launchers.config import Slurm
from dflash.pipeline.machines import works_here
from dflash.pipeline.project import inputs_of
from dflash.pipeline.provenance.variables import without_credentials
from dflash.pipeline.redaction import set_of, telling
from dflash.pipeline.schema import Pipeline
from dflash.pipeline.source import AS_COMMITTED, PATCH, Origin, changed
from dflash.pipeline.store import outputs_in
from dflash.validation import plain

Told = tuple[str, bytes]
"""A content by what it is called."""


def refuse_recorded(pipeline: Pipeline, text: str | None, source: Origin, data: Collection[Path]) -> None:
    """Raise UsageError where the record of a run here would show one of its secrets, or what its steps take along to
    other hosts: `text` is as in `refuse_in_settings`, and files that are `data` are not among its source. Raises
    StorageError, or OSError."""
    names, secrets = names_of(pipeline), hidden_of(pipeline)
    refuse_in_settings(secrets, pipeline, text)
    if names and source.patch:
        files = [*changed(without=data), (PATCH, source.patch)]
        refuse_in_source(secrets, files, "recorded")
        refuse_set_in_source(names - {*secrets}, files, "recorded")
    if secrets:
        refuse_in_inputs(secrets, _brought(pipeline))


def names_of(pipeline: Pipeline) -> set[str]:
    """The names of the secrets of a pipeline: of steps that do not run, too."""
    return {name for step in pipeline.steps for name in step.secrets}


def hidden_of(pipeline: Pipeline) -> dict[str, str]:
    """The values of these by name, as far as they are set here."""
    return set_of(names_of(pipeline), os.environ)


def _brought(pipeline: Pipeline) -> Iterator[Path]:
    """The files here that steps on other hosts are given there."""
    for step in pipeline.steps:
        if not works_here(step) and not isinstance(step.launcher, Slurm):  # whose nodes have the same files
            for each in [*inputs_of(step.inputs, ()), *belongings_of(step)]:
                yield from each.files()[0].values()


def refuse_in_source(secrets: Mapping[str, str], files: Iterable[Told], becomes: str) -> None:
    """Raise UsageError for the first of `files` that holds one of `secrets`, values by name, or is called by it."""
    if not secrets:
        return
    told = (each for name, content in files for each in ((_NAME, os.fsencode(name)), (name, content)))
    for secret, place, line in _found(secrets, told):
        at = place if place == _NAME else f"{place}:{line}"
        what = f"secret {secret} is in {at}, which would be {becomes} with the source"
        raise UsageError(what, cure=_taking_out(place))


def refuse_set_in_source(names: Collection[str], files: Iterable[Told], becomes: str) -> None:
    """Raise UsageError for the first of `files` with a line that sets one of `names`, secrets whose values are not
    known here, as a file of variables does. Whoever has such a file and has not read it into the environment would else
    have it told to others."""
    if not names:
        return
    line = re.compile(_SET % b"|".join(os.fsencode(name) for name in sorted(names)), re.MULTILINE | re.VERBOSE)
    for place, content in files:
        if found := line.search(content):
            secret, number = found["name"].decode(), content.count(b"\n", 0, found.start("name")) + 1
            what = f"secret {secret} is given a value in {place}:{number}, which would be {becomes} with the source"
            cure = f"{_taking_out(place)}; if it is another's, export {secret}=… with what it is"
            raise UsageError(what, cure=cure)


# A value that is taken from elsewhere, a call and what only says that there is none are none.
_SET = rb"""
    ^[ \t]*(?:export[ \t]+)?(?P<name>%b)[ \t]*[=:][ \t]*
    (?:"(?![$<{])[^"\n]+"|'(?![$<{])[^'\n]+'|(?![$<{%%*]|None\b|null\b)[^\s"'()\[\]]{4,})
    [ \t]*(?:\#.*)?\r?$
"""


def _taking_out(place: str) -> str:
    return "commit what takes it out" if place.endswith(AS_COMMITTED) else "add it to .gitignore or take it out"


def refuse_in_inputs(secrets: Mapping[str, str], paths: Iterable[Path]) -> None:
    """Raise UsageError for the first of the files at `paths` that holds one of `secrets`, or is called by it, and would
    be sent as it is, whatever git says of it. Raises OSError."""
    forms = {name: telling(value) for name, value in secrets.items()}
    if not any(forms.values()):
        return
    cure = "take it out, or name something else in the pipeline"
    told = list(dict.fromkeys(paths))
    for path in told:
        for secret, each in forms.items():
            if any(form in os.fsencode(path) for form in each):
                raise UsageError(f"secret {secret} is in {_NAME}, which would be sent as an input", cure=cure)
    for path in _searched((path, path.stat()) for path in told):
        for secret in _in_file(path, forms):
            raise UsageError(f"secret {secret} is in {path}, which would be sent as an input", cure=cure)


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


def named_by(secrets: Mapping[str, str], out: Path) -> str | None:
    """Which of `secrets` a file that a step has made in its folder is called by, if one is: what is written of a step
    has the names of its files. Raises OSError."""
    if not secrets:
        return None
    names = ((name, os.fsencode(name)) for name, _, _ in outputs_in(out))
    return next((secret for secret, _, _ in _found(secrets, names)), None)


def notes_of_outputs(
    secrets: Mapping[str, str], out: Path, is_over: Callable[[], bool] = lambda: False
) -> Iterator[str]:
    """A line for each of `secrets` that is in what a step has made in its folder: the first file, and how many others.
    That is the step's own, and no fault, but it is kept, and other steps read it. Not looked for any more once it
    `is_over`. Raises OSError."""
    forms = {name: telling(value) for name, value in secrets.items()}
    shown: dict[str, list[str]] = {}
    made = {path: (name, status) for name, path, status in outputs_in(out)} if any(forms.values()) else {}
    for path in _searched((path, status) for path, (_, status) in made.items()):
        for secret in _in_file(path, forms, is_over):
            shown.setdefault(secret, []).append(made[path][0])
    for secret, names in shown.items():
        others = f", and {len(names) - 1} more do" if len(names) > 1 else ""
        yield f"its output {names[0]} holds the secret {secret}{others}: whoever gets it can read that"


MOST_BYTES = 64 << 20
"""Of a file that is searched: what is larger is weights or data."""

MOST_IN_ALL = 2 << 30
"""Of files that are searched: it takes some ten seconds."""

_CHUNK = 1 << 20


def _searched(files: Iterable[tuple[Path, os.stat_result]]) -> Iterator[Path]:
    total = 0
    for path, status in files:
        if stat.S_ISREG(status.st_mode) and status.st_size <= MOST_BYTES:
            total += status.st_size
            if total > MOST_IN_ALL:
                return
            yield path


def _in_file(
    path: Path, forms: Mapping[str, Sequence[bytes]], is_over: Callable[[], bool] = lambda: False
) -> list[str]:
    """Which secrets are in a file, of which one piece at a time is in memory."""
    keep = max(len(form) for each in forms.values() for form in each) - 1
    found, rest = dict.fromkeys(forms, False), b""
    with path.open("rb") as file:
        while not is_over() and (chunk := file.read(_CHUNK)):
            piece = rest + chunk
            for secret, each in forms.items():
                found[secret] = found[secret] or any(form in piece for form in each)
            rest = piece[-keep:]
    return [secret for secret, is_there in found.items() if is_there]


def _found(secrets: Mapping[str, str], told: Iterable[Told]) -> Iterator[tuple[str, str, int]]:
    """Which secret is in which content, and on which line of it."""
    finders = {name: _finder(value) for name, value in secrets.items()}
    for place, content in told:
        for secret, find in finders.items():
            if (at := find(content)) >= 0:
                yield secret, place, content.count(b"\n", 0, at) + 1


def _finder(value: str) -> Callable[[bytes], int]:
    """What says where a value is in a content, or -1: in any form; a short one, of which other forms are anybody's,
    only as a word."""
    if forms := telling(value):
        return lambda content: next((at for form in forms if (at := content.find(form)) >= 0), -1)
    word = re.compile(rb"(?<!\w)" + re.escape(os.fsencode(value)) + rb"(?!\w)")
    return lambda content: found.start() if (found := word.search(content)) else -1
