"""work/<kind>/<key>/: what steps made, and whether it is still there.

A folder holds `started.json` from a step's start, and `done.json`, written last, once it finished: without it
nothing in the folder is ever used by another step. `observed.json` is beside that what its process was seen to be at
its end (dflash/pipeline/provenance/observing.py). Files below a folder named `scratch`, and files whose name
starts with a dot, are the step's own affair (checkpoints it resumes from, caches) and are not its outputs.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dflash.atomic import aside, write_json
from dflash.errors import DataError, storage_error
from dflash.pipeline.files import canonical, digest, file_digest

_SCHEMA = 1
_OBSERVED = "observed.json"
_OWN = ("done.json", "started.json", _OBSERVED)
PARTS = ".parts.jsonl"


@dataclass(frozen=True)
class Output:
    """A file that a step made, relative to its folder."""

    path: str
    size: int
    sha256: str
    mtime_ns: int


@dataclass(frozen=True)
class Done:
    """A finished step. `contents`: by kind, the content of each input it was made from."""

    key: str
    step: str
    fields: Mapping[str, Any]
    contents: Mapping[str, str]
    result: dict[str, Any]
    outputs: tuple[Output, ...]
    seconds: float
    finished: float
    run: str

    @property
    def content(self) -> str:
        """A hash of all outputs: equal when another attempt made the same files."""
        return digest(canonical(sorted((each.path, each.sha256) for each in self.outputs)))


@dataclass(frozen=True)
class Folder:
    """What is found where a step's output belongs.

    `state` is "absent", "started" or "done"; `damage` says what is wrong with the outputs of a done one;
    `contents` are those of the inputs it was started or made with; `has_failed` is whether the run that started it is
    known to have seen it fail.
    """

    state: str
    done: Done | None = None
    damage: tuple[str, ...] = ()
    contents: Mapping[str, str] | None = None
    started_by: str = ""
    has_failed: bool = False


ABSENT = Folder("absent")


@dataclass(frozen=True)
class Attempt:
    """One try at a step: `contents` are, by kind, those of its inputs."""

    kind: str
    key: str
    step: str
    run: str
    contents: Mapping[str, str]


class Store:
    """The work folder below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        self._newest: dict[str, dict[str, Done]] = {}  # by kind and step: read once, as many steps may ask
        self._failed: dict[str, frozenset[str]] = {}  # by run, so too

    def folder(self, kind: str, key: str) -> Path:
        """Where the step with this key keeps its output."""
        return self.work / kind / key[:16]

    def look(self, kind: str, key: str) -> Folder:
        """Read and check the folder of a step. Raises StorageError."""
        place = self.folder(kind, key)
        try:
            if not place.is_dir():
                return ABSENT
            done = _read_done(place)
            if done is not None and done.key == key:
                return Folder("done", done, tuple(_damage(place, done)), done.contents, done.run)
            contents = _read(place / "started.json").get("contents")
            run = begun_by(place)
            return Folder("started", None, (), contents, run, place.name in self._failed_in(run))
        except OSError as failure:
            raise storage_error(failure, failure.filename or place) from failure

    def _failed_in(self, run: str) -> frozenset[str]:
        """The names of the folders of the steps that failed in a run, as far as its record is there."""
        if run not in self._failed:
            steps = _read(self.root / "runs" / run / "record.json").get("steps", []) if run else []
            failed = (each.get("folder", "") for each in steps if each.get("status") == "failed")
            self._failed[run] = frozenset(Path(folder).name for folder in failed)
        return self._failed[run]

    def newest(self, kind: str, step: str) -> Done | None:
        """The last finished step of this kind and name, whatever its key."""
        if kind not in self._newest:
            found = [_read_done(path.parent) for path in (self.work / kind).glob("*/done.json")]
            whole = sorted((done for done in found if done), key=lambda done: done.finished)
            self._newest[kind] = {done.step: done for done in whole}
        return self._newest[kind].get(step)

    def begin(self, attempt: Attempt) -> Path:
        """Make or reuse the step's folder. What was made from other inputs is moved aside, never deleted."""
        place = self.folder(attempt.kind, attempt.key)
        found = self.look(attempt.kind, attempt.key)
        if found.contents is not None and dict(found.contents) != dict(attempt.contents):
            place.rename(aside(place, "replaced"))
        place.mkdir(parents=True, exist_ok=True)
        for name in ("done.json", _OBSERVED):
            (place / name).unlink(missing_ok=True)
        write_json(place / "started.json", {"schema": _SCHEMA, **asdict(attempt)})
        return place

    def finish(
        self,
        attempt: Attempt,
        fields: Mapping[str, Any],
        result: dict[str, Any],
        seconds: float,
        observed: Mapping[str, Any] | None = None,
    ) -> Done:
        """Write done.json: from here on the step is finished.

        Raises DataError for a file whose name can not be written down, or OSError.
        """
        place = self.folder(attempt.kind, attempt.key)
        done = Done(
            attempt.key,
            attempt.step,
            fields,
            attempt.contents,
            result,
            tuple(_outputs(place)),
            seconds,
            time.time(),
            attempt.run,
        )
        if observed:
            write_json(place / _OBSERVED, observed)
        write_json(place / "done.json", {"schema": _SCHEMA, **asdict(done)})
        if attempt.kind in self._newest:
            self._newest[attempt.kind][attempt.step] = done
        return done


def _read(path: Path) -> dict[str, Any]:
    """A JSON map, or an empty one when the file is missing or damaged."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_done(place: Path) -> Done | None:
    value = _read(place / "done.json")
    if value.pop("schema", None) != _SCHEMA:
        return None
    try:
        value["outputs"] = tuple(Output(**each) for each in value["outputs"])
        known = {each.name for each in fields(Done)}  # a newer version's may have more
        return Done(**{name: each for name, each in value.items() if name in known})
    except (KeyError, TypeError):
        return None


def note_part(place: Path, run: str, first: int) -> None:
    """Note that a run began its part of the step with this folder: it tells that `first` units are done. Raises
    OSError."""
    with (place / PARTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"run": run, "first": first}) + "\n")


def parts_of(place: Path) -> dict[str, int]:
    """The runs that made progress with the step with this folder, in that order, and the first that each told of.
    Raises OSError."""
    found: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in (place / PARTS).read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a torn line
                part = json.loads(line)
                found.setdefault(str(part["run"]), int(part["first"]))
    return found


def begun_by(place: Path) -> str:
    """The run that last began the step with this folder; empty where none did. Raises OSError."""
    return str(_read(place / "started.json").get("run", ""))


def observed_in(place: Path) -> dict[str, Any]:
    """What the process of the step with this folder was seen to be at its end; empty where that is not known."""
    return _read(place / _OBSERVED)


def outputs_in(place: Path) -> Iterator[tuple[str, Path, os.stat_result]]:
    """The files that a step made: name below its folder, path and status. What holds nothing to be kept, a pipe or a
    socket, is none. Raises DataError for a name that can not be written down, or OSError."""
    for folder, folders, files in os.walk(place):
        folders[:] = sorted(name for name in folders if name != "scratch" and not name.startswith("."))
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in sorted([*files, *links]):
            path = Path(folder) / name
            relative = path.relative_to(place).as_posix()
            if relative in _OWN or name.startswith("."):
                continue
            status = path.lstat()
            if not _is_kept(status):
                continue
            try:
                relative.encode()
            except UnicodeEncodeError:
                shown = relative.encode(errors="backslashreplace").decode()
                cure = "give it another name, or one that begins with a dot, which is no output"
                raise DataError(f"the name of its file '{shown}' is not UTF-8", where=str(place), cure=cure) from None
            yield relative, path, status


def _is_kept(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)


def _outputs(place: Path) -> list[Output]:
    return [
        Output(name, status.st_size, file_digest(path), status.st_mtime_ns) for name, path, status in outputs_in(place)
    ]


def _damage(place: Path, done: Done) -> list[str]:
    damage = []
    for output in done.outputs:
        path = place / output.path
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            damage.append(f"output {output.path} is missing")
            continue
        same = status.st_mtime_ns == output.mtime_ns or (_is_kept(status) and file_digest(path) == output.sha256)
        if status.st_size != output.size or not same:
            damage.append(f"output {output.path} has changed")
    return damage
