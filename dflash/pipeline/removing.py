"""Take runs away that nobody needs any more, and what only they made. Nothing else in this project deletes either."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash.compilation.vault import vault_folder
from dflash.errors import BusyError, DataError, UsageError, storage_error
from dflash.pipeline import lock
from dflash.pipeline.errand import load_errand
from dflash.pipeline.record import AWAY, load_record, runs
from dflash.validation import suggestion


@dataclass(frozen=True)
class Removal:
    """A folder that is to go: what it is, of which run, where it lies, and its size in bytes."""

    what: str
    run: str
    folder: Path
    bytes: int


def plan_removal(root: Path, wanted: Sequence[str], *, outputs: bool) -> list[Removal]:
    """What goes with the runs `wanted` of a root: the folder of each, and before it, if `outputs` are to go too, those
    of its steps that no other run has.

    Raises:
        UsageError: there is no such run. BusyError: one is at work, or something is kept for it.
        StorageError: a folder can not be read.
    """
    known = runs(root)
    for run in wanted:
        if run not in known:
            cure = suggestion(run, known, "runs") if len(known) < 10 else "./inv runs lists them"
            raise UsageError(f"there is no run {run!r}", where=str(root / "runs"), cure=cure)
        _refuse_needed(root, run)
    made = {run: _made_by(root, run) for run in known} if outputs else {}
    elsewhere = {folder for run in known if run not in wanted for folder in made.get(run, ())}
    found: dict[Path, Removal] = {}
    for run in dict.fromkeys(wanted):
        for folder in (*(each for each in made.get(run, ()) if each not in elsewhere), root / "runs" / run):
            if folder not in found and folder.is_dir():
                what = "run" if folder.parent.name == "runs" else f"output of {folder.parent.name}"
                found[folder] = Removal(what, run, folder, _size(folder))
    return list(found.values())


def remove(root: Path, removals: Sequence[Removal]) -> None:
    """Delete what `plan_removal` found. What says that a folder is whole goes first, of a run's folder the record goes
    last: whenever this ends, nothing half-deleted is used, and the same once more does the rest.

    Raises:
        BusyError: a run is at work here, and may use an output. StorageError: a folder can not be deleted.
    """
    outputs = [each for each in removals if each.what != "run"]
    try:
        if outputs:
            with lock.holding(root, "rm"):
                for each in outputs:
                    (each.folder / "done.json").unlink(missing_ok=True)
                    shutil.rmtree(each.folder)
        for each in removals:
            if each.what == "run":
                for inside in each.folder.iterdir():
                    if inside.is_dir() and not inside.is_symlink():
                        shutil.rmtree(inside)
                    elif inside.name != "record.json":
                        inside.unlink()
                shutil.rmtree(each.folder)
    except OSError as failure:
        raise storage_error(failure, failure.filename or root) from failure


def _refuse_needed(root: Path, run: str) -> None:
    where = str(root / "runs" / run)
    if (owner := lock.owner(root)) and owner.run == run:
        raise BusyError(f"run {run} is at work (process {owner.pid})", where=where, cure="wait for it, or stop it")
    if (root / "runs" / run / AWAY).exists():
        errand = load_errand(root, run)
        if errand.ended is None:
            cure = f"./inv follow {run} sees it end, ./inv stop {run} ends it"
            raise BusyError(f"run {run} is at work on {errand.host}, as far as is known here", where=where, cure=cure)
    if (vault_folder(root) / "pins" / run).exists():
        cure = f"./inv cache.list names it; let go of it: ./inv cache.pin SNAPSHOT --for-run {run} --release"
        raise BusyError(f"a compile cache is kept for run {run}", where=where, cure=cure)
    for pin in (root / "envs").glob(f"*/pins/{run}"):
        name = pin.parents[1].name
        cure = f"let go of it: ./inv env.pin {name} --for-run {run} --release"
        raise BusyError(f"a generation of {name} is kept for run {run}", where=where, cure=cure)


def _made_by(root: Path, run: str) -> list[Path]:
    """The folders of a run's steps: those that it made, and those that it found made. Of a damaged record none is
    known, so that nothing is known to be needed by nobody else, either."""
    try:
        return [root / step["folder"] for step in load_record(root, run)["steps"]]
    except DataError as failure:
        cure = "leave out --outputs, or move this run's folder away first"
        raise DataError(failure.what, where=failure.where, cure=cure) from failure


def _size(folder: Path) -> int:
    """Bytes on the disk, each file once however many names it has."""
    seen: set[tuple[int, int]] = set()
    total = 0

    def fails(failure: OSError) -> None:
        raise storage_error(failure, failure.filename or folder) from failure

    for place, _, files in os.walk(folder, onerror=fails):
        for name in files:
            status = os.lstat(os.path.join(place, name))
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
    return total
