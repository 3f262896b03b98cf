"""Take runs away that nobody needs any more, and what only they made. Nothing else in this project deletes either."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash.compilation.vault import vault_folder
from dflash.errors import BusyError, DataError, UsageError, storage_error
from dflash.pipeline import lock
from dflash.pipeline.errand import load_errand
from dflash.pipeline.record import AWAY, listed, load_record, runs
from dflash.validation import suggestion


@dataclass(frozen=True)
class Removal:
    """A folder that is to go, or a link to one: what it is, of which run, where it lies, and the bytes it frees."""

    what: str
    run: str
    folder: Path
    bytes: int


def plan_removal(root: Path, wanted: Sequence[str], *, outputs: bool) -> list[Removal]:
    """What goes with the runs `wanted` of a root: the folder of each, and before it, if `outputs` are to go too, those
    of its steps that no other run has, with what was moved aside for them. Of an output that is a link, as somebody
    moved it to another disk, only the link goes.

    Raises:
        UsageError: there is no such run. BusyError: one is at work, or needed by one that is, or something is kept for
        it, or work goes on for an output. StorageError: a folder can not be read.
    """
    known = runs(root)
    for run in wanted:
        if run not in known:
            cure = suggestion(run, known, "runs") if len(known) < 10 else "./inv runs lists them"
            raise UsageError(f"there is no run {run!r}", where=str(root / "runs"), cure=cure)
        _refuse_needed(root, run)
    _refuse_originals(root, wanted)
    made = {run: _made_by(root, run) for run in known} if outputs else {}
    elsewhere = {folder for run in known if run not in wanted for folder in made.get(run, ())}
    found: dict[Path, Removal] = {}
    for run in dict.fromkeys(wanted):
        for output in made.get(run, ()):
            if output not in elsewhere:
                _refuse_worked_on(output, run)
                found |= {each.folder: each for each in _of_output(output, run) if each.folder not in found}
        folder = root / "runs" / run
        found[folder] = Removal("run", run, folder, _size(folder))
    return list(found.values())


def _of_output(output: Path, run: str) -> Iterator[Removal]:
    kind, replaced = output.parent.name, sorted(output.parent.glob(f"{output.name}.replaced-*"))
    for what, folder in (("output", output), *(("replaced output", each) for each in replaced)):
        if folder.is_symlink():
            yield Removal(f"link to {what} of {kind}", run, folder, 0)
        elif folder.is_dir():
            yield Removal(f"{what} of {kind}", run, folder, _size(folder))


def remove(root: Path, removals: Sequence[Removal]) -> list[Removal]:
    """Delete what `plan_removal` found, but for an output that another run has come to have meanwhile; what was
    deleted. What says that a folder is whole goes first, of a run's folder the record goes last: whenever this ends,
    nothing half-deleted is used, and the same once more does the rest.

    Raises:
        BusyError: a run is at work here, and may use an output. StorageError: a folder can not be deleted.
    """
    outputs, folders = ([each for each in removals if (each.what == "run") == is_run] for is_run in (False, True))
    try:
        if outputs:
            with lock.holding(root, "rm"):
                still = {each.folder for each in plan_removal(root, [each.run for each in folders], outputs=True)}
                outputs = [each for each in outputs if each.folder in still]
                for each in outputs:
                    _delete(each.folder, first="done.json")
        for each in folders:
            for inside in each.folder.iterdir():
                if inside.name != "record.json":
                    _delete(inside)
            shutil.rmtree(each.folder)
    except OSError as failure:
        raise storage_error(failure, failure.filename or root) from failure
    return [*outputs, *folders]


def _delete(path: Path, first: str = "") -> None:
    """Delete a file, a link, or a folder, of which the file `first` goes first."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    if first:
        (path / first).unlink(missing_ok=True)
    shutil.rmtree(path)


def left_there(root: Path, run: str) -> str:
    """What a run that a host had, and that did not end well, has left there, in a line; empty without. Whoever removes
    it here is the last to know. Raises DataError, StorageError."""
    if not (root / "runs" / run / AWAY).exists():
        return ""
    errand = load_errand(root, run)
    if not errand.environment or not errand.ended or errand.ended.get("code") == 0:
        return ""
    release = f"./inv env.pin {errand.environment} --host {errand.host} --for-run {errand.first} --release"
    return f"{errand.host} still has {errand.folder}, and may keep a generation for it; let go of that: {release}"


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


def _refuse_originals(root: Path, wanted: Sequence[str]) -> None:
    """What a run that is at work does again, or goes on with, is read when that has ended."""
    for record in listed(root, whole=False):
        if record["status"] == "running" and record["id"] not in wanted:
            known = load_record(root, record["id"])
            if (root / "runs" / record["id"] / AWAY).exists():
                known = {"provenance": load_errand(root, record["id"]).request.get("known")}
            original: str = ((known.get("provenance") or {}).get("predecessor") or {}).get("run", "")
            if original in wanted:
                what = f"run {original} is needed by run {record['id']}, which is at work"
                raise BusyError(what, where=str(root / "runs" / original), cure="wait for it, or stop it")


def _refuse_worked_on(output: Path, run: str) -> None:
    """Of a runner that was killed, what it had started on another machine may go on: only the folder tells of it."""
    if (output / "done.json").exists():
        return
    note = output / "scratch" / "elsewhere.json"
    if note.exists():
        cure = f"./inv resume {run} brings it here; without that file nobody knows of it any more"
        raise BusyError("a host has, or works on, what this step made", where=str(note), cure=cure)
    if (output / "scratch" / "slurm").is_dir() and shutil.which("sbatch"):
        from dflash.pipeline.launchers.slurm import name_of
        from dflash.pipeline.launchers.slurmqueue import Queue

        if found := Queue(name_of(output), os.environ).find():
            number, _ = found
            cure = f"./inv resume {run} goes on with it, scancel {number} ends it"
            raise BusyError(f"Slurm's job {number} is at work on it", where=str(output), cure=cure)


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
