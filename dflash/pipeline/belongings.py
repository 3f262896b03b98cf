"""What a pipeline reads from outside itself, and where that is for a run on another machine.

A setting that names an absolute path means one there. A relative one means this machine's: a file, a folder or a
pattern, which goes along into ROOT/data/ID/, named by a hash of all of it, and is there whole or not at all.
"""

from __future__ import annotations

import glob
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import yaml

from dflash.atomic import sha256
from dflash.errors import UsageError, storage_error
from dflash.hosts import files
from dflash.hosts.connection import Connection
from dflash.hosts.failures import HostError
from dflash.pipeline.files import canonical, digest
from dflash.pipeline.matrix import declared_name
from dflash.pipeline.schema import Pipeline, Step

ID_LENGTH = 16


@dataclass(frozen=True)
class Belonging:
    """One setting, `step.key`, and what it names."""

    setting: str
    name: str

    @property
    def is_there(self) -> bool:
        """Whether it means a path of the other machine."""
        return os.path.isabs(self.name)

    def files(self) -> tuple[dict[str, Path], str]:
        """As `files_named`. Raises OSError."""
        return files_named(self.name)


@dataclass(frozen=True)
class Parcel:
    """What goes along for a setting: files here by their paths in the parcel, and which of those it names."""

    files: dict[str, Path]
    named: str
    id: str


def belongings(pipeline: Pipeline) -> Iterator[Belonging]:
    """Every setting of a pipeline that names a path, once for all steps of a matrix.

    Raises UsageError where a matrix chooses among paths of which one is relative: a setting has one place there.
    """
    found: dict[Belonging, None] = {}
    for step in pipeline.steps:
        found |= dict.fromkeys(belongings_of(step))
    chosen = Counter(each.setting for each in found)
    for each in found:
        if chosen[each.setting] > 1 and not each.is_there:
            cure = "put them there (./inv put), and name them by absolute paths"
            raise UsageError(f"a matrix chooses {each.name} among others", where=each.setting, cure=cure)
        yield each


def belongings_of(step: Step) -> Iterator[Belonging]:
    """Every setting of a step that names a path."""
    for path in step.kind.paths:
        name = reduce(getattr, path.split("."), step.config)
        if name is not None:
            yield Belonging(f"{declared_name(step.name)}.{path}", name)


def files_here(pipeline: Pipeline) -> list[Path]:
    """The files here that settings of a pipeline name: they are data, and no source. Raises OSError."""
    named = [files_named(each.name)[0] for step in pipeline.steps for each in belongings_of(step)]
    return [path for files in named for path in files.values()]


def files_named(name: str) -> tuple[dict[str, Path], str]:
    """The files that a path or a pattern names here, by their paths from the folder that it begins in; and what it is
    from there; an empty name names nothing. Raises OSError."""
    if not name:
        return {}, ""
    base, named = _split(os.path.normpath(name))
    return {str(path.relative_to(base)): path for path in _found(base, named) if path.is_file()}, named


def parcel(belonging: Belonging) -> Parcel:
    """Read what a relative path names here.

    Raises:
        UsageError: nothing of that name is here, or a name is no text.
        StorageError: a file can not be read.
    """
    if not belonging.name:
        cure = "name a file, a folder or a pattern, or leave the setting out"
        raise UsageError("an empty name is none", where=belonging.setting, cure=cure)
    try:
        found, named = belonging.files()
        if not found:
            cure = "a relative path is sent along, an absolute one must be there: check it, or name one that is there"
            raise UsageError(f"{belonging.name} is not on this machine", where=belonging.setting, cure=cure)
        hashes = sorted((name, sha256(path)) for name, path in found.items())
        canonical([named, hashes]).encode()
    except UnicodeEncodeError as failure:
        what = f"a name here is not UTF-8: {os.fsencode(failure.object)!r}"
        raise UsageError(what, where=belonging.setting, cure="rename it") from None
    except OSError as failure:
        raise storage_error(failure, failure.filename or belonging.name) from failure
    return Parcel(found, named, digest(canonical(hashes))[:ID_LENGTH])


def _split(name: str) -> tuple[Path, str]:
    """The folder that a parcel is packed from, and the name or pattern below it."""
    path = Path(name)
    if path.exists() or not glob.has_magic(name):
        path = Path(os.path.abspath(name))  # .. has a name, too
        return path.parent, path.name
    depth = next(depth for depth, part in enumerate(path.parts) if glob.has_magic(part))
    return Path(*path.parts[:depth]), str(Path(*path.parts[depth:]))


def _found(base: Path, named: str) -> Iterator[Path]:
    path = base / named
    if path.is_dir():
        yield from path.rglob("*")
    elif path.exists():
        yield path
    else:
        yield from (base / each for each in glob.glob(named, root_dir=base, recursive=True))


# As the steps look for them (dflash/training/files.py). NUL is the one byte that no name has.
_LOOK = """
import glob, os, sys
there = [os.path.lexists(name) or any(glob.iglob(name, recursive=True)) for name in sys.argv[1:]]
sys.stdout.buffer.write(os.fsencode("\\0".join([os.path.expanduser("~"), *("01"[each] for each in there)])))
"""


def look(connection: Connection, names: Sequence[str]) -> tuple[str, dict[str, bool]]:
    """The home there, and which of `names`, paths or patterns, are there. Raises HostError."""
    result = connection.run(["python3", "-IS", "-c", _LOOK, *names])
    if result.code:
        said = result.stderr.decode(errors="replace").strip().splitlines()
        raise HostError(said[-1] if said else f"python3 ended with {result.code}", layer=connection.layer)
    home, *answers = os.fsdecode(result.stdout).split("\0")
    return home, {name: answer == "1" for name, answer in zip(names, answers, strict=True)}


def require(found: Sequence[Belonging], there: dict[str, bool], layer: str) -> None:
    """Raise UsageError, before anything is done there, for the first absolute path that is not there."""
    for each in found:
        if each.is_there and not there[each.name]:
            cure = f"put it there (./inv put), or name a path on this machine that is relative: --set {each.setting}=…"
            raise UsageError(f"{each.name} is not there", where=f"{layer}: {each.setting}", cure=cure)


def place_of(root: str, packed: Parcel) -> str:
    """The parcel's folder there."""
    return f"{root}/data/{packed.id}"


def override(belonging: Belonging, root: str, packed: Parcel) -> str:
    """The setting as it must be for the run there."""
    path = f"{place_of(root, packed)}/{packed.named}"
    quoted = yaml.safe_dump(path, default_style='"', width=sys.maxsize).strip()
    return f"{belonging.setting}={quoted}"


def send(connection: Connection, root: str, belonging: Belonging, packed: Parcel) -> None:
    """Put a parcel's files there: beside their place first, so that they are in it all at once. What broke off is gone
    on with.

    Raises:
        UsageError: they are not any more what they were when the parcel was made; nothing is in its place then.
        TransferFailed, LostConnection: the host.
    """
    place = place_of(root, packed)
    for name, path in packed.files.items():
        files.put(connection, path, f"{place}.part/{name}")
    if parcel(belonging).id != packed.id:
        cure = "run this again once nothing writes to it any more"
        raise UsageError(f"{belonging.name} was changed before it was sent", where=belonging.setting, cure=cure)
    result = connection.run(["mv", "-T", f"{place}.part", place])
    if result.code and not look(connection, [place])[1][place]:  # another caller may have brought the same
        said = result.stderr.decode(errors="replace").strip().splitlines()
        raise files.TransferFailed(said[-1] if said else f"mv ended with {result.code}", layer=connection.layer)
