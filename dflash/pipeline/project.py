"""Where a pipeline's relative `inputs` begin: in this project's folder, and for a run, or a step, on another machine in
one there in which each lies as it does here. What the source there does not have of them goes along as data:

    ROOT/data/ID/...      the files that a pattern names, as those of a setting (belongings.py)
    ROOT/inputs/ID/...    links to these and to the source; files above the project lie above it there, too
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from dflash.errors import UsageError, storage_error
from dflash.pipeline.belongings import ID_LENGTH, Belonging
from dflash.pipeline.files import canonical, digest
from dflash.pipeline.keys import HOME, files_of
from dflash.pipeline.schema import Pipeline

_ABOVE = ".."


@dataclass(frozen=True)
class Input(Belonging):
    """A relative pattern among a step's `inputs`, of which files are not among the source that is `sent`: they are
    looked for below `home`."""

    sent: frozenset[str] = field(repr=False, compare=False)
    home: Path = field(compare=False)

    @property
    def up(self) -> int:
        """How many folders above the project its files are."""
        parts = Path(os.path.normpath(self.name)).parts
        return next((number for number, part in enumerate(parts) if part != _ABOVE), len(parts))

    def files(self) -> tuple[dict[str, Path], str]:
        """The files, by their paths from where all of them are: `up` folders above the project. Raises OSError."""
        found: dict[str, Path] = {}
        for path in files_of(self.name, self.home):
            real = os.path.relpath(os.path.realpath(path), os.path.realpath(self.home))
            if real not in self.sent:
                name = os.path.normpath(path.relative_to(self.home))
                found[str(Path(*Path(name).parts[self.up :]))] = path
        return found, ""


def inputs_of(patterns: Iterable[str], sent: Collection[str], home: Path = HOME) -> Iterator[Input]:
    """Those of `patterns` that are relative, and name files which the source that is `sent`, by their paths from
    `home`, does not have. Raises StorageError, and UsageError for one that leaves the project and comes back by its
    name, which is another one there."""
    names = frozenset(sent)
    for pattern in dict.fromkeys(patterns):
        if not os.path.isabs(pattern):
            within = os.path.relpath(os.path.normpath(home / pattern), home)
            if os.path.normpath(pattern).startswith(_ABOVE) and not within.startswith(_ABOVE):
                what = f"{pattern} leads out of the project and into it again, whose folder has another name there"
                raise UsageError(what, where="inputs", cure=f"write {within}")
            each = Input("inputs", pattern, names, home)
            try:
                if each.files()[0]:
                    yield each
            except OSError as failure:
                raise storage_error(failure, failure.filename or pattern) from failure


def patterns_of(pipeline: Pipeline) -> list[str]:
    """The `inputs` of all steps."""
    return [pattern for step in pipeline.steps for pattern in step.inputs]


def project_of(request: Mapping[str, Any], root: Path, source: Path = HOME) -> Path:
    """The project's folder for what is asked (dflash/pipeline/request.py): this one, or one below `root` with what came
    along in its place. It is made once, and is whole or not there. Raises StorageError."""
    came = request.get("inputs")
    if not came:
        return source
    folder = root / "inputs" / digest(canonical([str(source), came]))[:ID_LENGTH]
    within = Path(*["project"] * max(each["up"] for each in came))
    try:
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(mkdtemp(prefix=".draft-", dir=folder.parent))
            try:
                _lay(draft / within, source, came)
                try:
                    draft.rename(folder)
                except OSError:
                    if not folder.exists():  # another has made the same meanwhile
                        raise
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    except OSError as failure:
        raise storage_error(failure, failure.filename or folder) from failure
    return folder / within


def _lay(project: Path, source: Path, came: Collection[Mapping[str, Any]]) -> None:
    project.mkdir(parents=True, exist_ok=True)
    for each in source.iterdir():
        (project / each.name).symlink_to(each)
    for one in came:
        place = Path(one["place"])
        base = Path(os.path.normpath(project / Path(*[_ABOVE] * one["up"])))
        for file in sorted(path for path in place.rglob("*") if path.is_file()):
            _link(base, file.relative_to(place).parts, file)


def _link(base: Path, parts: tuple[str, ...], file: Path) -> None:
    """Link to a file, and where a folder on the way is itself a link, as those of the source are, to all that is in
    that."""
    for part in parts[:-1]:
        base /= part
        if base.is_symlink():
            of = base.resolve()
            base.unlink()
            base.mkdir()
            for each in of.iterdir():
                (base / each.name).symlink_to(each)
        base.mkdir(exist_ok=True)
    place = base / parts[-1]
    place.unlink(missing_ok=True)
    place.symlink_to(file)
