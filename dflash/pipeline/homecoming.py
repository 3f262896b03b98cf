"""What a step has made on another host comes home, and what is left of an attempt there is ended.

A job there is noted in the step's folder before it starts, until its end is seen and what it made is here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

from dflash.errors import DFlashError
from dflash.hosts import files
from dflash.hosts.failures import HostError
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.pipeline import machines
from dflash.pipeline.launchers import held
from dflash.pipeline.launchers.post import own_word_of
from dflash.pipeline.store import PARTS
from dflash.pipeline.stream import Events

_OWN = ("done.json", "started.json", PARTS)
"""Of a step's folder, what is the store's here."""


def note_of(out: Path) -> Path:
    """The file in which a step's folder has which job works for it elsewhere, until what that made is home."""
    return out / "scratch" / "elsewhere.json"


def settle(out: Path, host: Host | None, stream: Events) -> None:
    """End the job of an attempt before, and bring home what it had saved. One on another host than the step's, `host`,
    that can not be reached any more is left there: its lease ends it. Raises HostError."""
    if (noted := _noted(out)) is None:
        return
    before, job, place, own = noted
    held.end(before, job)
    try:
        come_home(before, place, own, out)
    except HostError as failure:
        if host is not None and host.chain == before.chain:
            raise
        stream.note(f"what an attempt before has saved at {before.name} stays there: {failure}")
        _forget(out)


def end_now(out: Path) -> None:
    """End what works elsewhere for a step whose process here was killed, before anything there saves what it has. A
    host that does not answer within ENDING_S is left to its lease."""
    if noted := _noted(out):
        held.beside(held.end, *noted[:2]).join(ENDING_S)


ENDING_S = 20.0


def _noted(out: Path) -> tuple[Host, str, str, str] | None:
    """Which job works for a step and where, and its two folders there."""
    try:
        noted = json.loads(note_of(out).read_bytes())
        place, own, job = noted.pop("out"), noted.pop("own"), noted.pop("job")
        return machines.from_json(noted)["host"], job, place, own
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


# A line for each would be cut at a newline in a name.
_LIST = """
import os, sys
place = os.fsencode(sys.argv[1])
if not os.path.isdir(place):
    sys.exit(3)
for folder, folders, names in os.walk(place):
    for name in folders + names:
        sys.stdout.buffer.write(os.path.relpath(os.path.join(folder, name), place) + b"\\0")
"""
_GONE = 3


def come_home(host: Host, place: str, own: str, out: Path) -> bool:
    """Have the step's folder here as the one there is, and nothing of it left there; whether there was one. Raises
    HostError, StorageError."""
    was_there = _fetch(host, place, out)
    _forget(out)
    with contextlib.suppress(DFlashError), reach(host.chain) as connection:
        connection.run(["rm", "-rf", place, own])
    return was_there


def _forget(out: Path) -> None:
    note_of(out).unlink(missing_ok=True)
    own_word_of(out).unlink(missing_ok=True)  # what could not be removed there is never taken for an attempt's again


@held.persistent
def _fetch(host: Host, place: str, out: Path) -> bool:
    with reach(host.chain) as connection:
        listed = connection.run(["python3", "-IS", "-c", _LIST, place])
        if listed.status == _GONE:
            return False
        if listed.code:
            said = listed.stderr.decode(errors="replace").strip().splitlines()
            raise HostError(said[-1] if said else f"python3 ended with {listed.code}", layer=connection.layer)
        there = {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}
        for name in sorted(name for name in there if "/" not in name and name not in _OWN):
            files.get(connection, f"{place}/{name}", out / name)
    spared = {*_OWN, "scratch", *(str(file(out).relative_to(out)) for file in (note_of, own_word_of))}
    for path in sorted(out.rglob("*"), reverse=True):  # what is in a folder before it
        if str(path.relative_to(out)) not in there | spared:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return True
