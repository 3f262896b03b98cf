"""The program that runs at the far end: makes, lists, switches, removes and reads environments there.

Standard library, Python 3.8+; sent as an archive (dflash.hosts.program) that also holds the lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from dflash.environments import installed, surroundings
from dflash.environments.generations import (
    STORAGE,
    USAGE,
    current_of,
    generations,
    held,
    history_of,
    is_finished,
    meant,
    named,
    pins_of,
    point,
    remove,
    stop,
    users_of,
    write,
)
from dflash.environments.making import create


def main() -> int:
    """`ROLE ROOT [WORD...]`: prints one JSON document on standard output, or a line on standard error."""
    role, root, *words = sys.argv[1:]
    try:
        # Resolved: /proc knows processes by real paths.
        print(json.dumps(ROLES[role](Path(os.path.expanduser(root)).resolve(), *words), separators=(",", ":")))
    except OSError as failure:
        stop(STORAGE, f"{failure.filename or root}: {failure.strerror or failure}")
    return 0


def look(root: Path, *files: str) -> dict[str, Any]:
    """Where the root really is, what machine this is, and which of `files` below the root are there."""
    return {
        "root": str(root),
        "machine": os.uname().machine,
        "there": [name for name in files if (root / name).exists()],
    }


def list_all(root: Path, *names: str) -> list[dict[str, Any]]:
    """Every generation of the named environments, or of all."""
    base, found = root / "envs", []
    for folder in sorted(base.iterdir()) if base.is_dir() else []:
        if not folder.is_dir() or (names and folder.name not in names):
            continue
        pins, current = pins_of(folder), current_of(folder)
        gone = [folder / current] if current and not (folder / current).is_dir() else []
        for place in [*generations(folder), *gone]:
            record = installed.read_record(place)
            found.append(
                {
                    "name": folder.name,
                    "id": place.name,
                    "path": str(place),
                    "finished": record is not None,
                    "current": place.name == current,
                    "lock": record.lock if record else None,
                    "python": record.python if record else None,
                    "made": record.made if record else None,
                    "bytes": sum(each.size for each in record.files.values()) if record else None,
                    "pinned": pins.get(place.name, []),
                }
            )
    return found


def use(root: Path, name: str, wanted: str) -> dict[str, Any]:
    """Make `wanted` the current one: a generation's id, or the beginning of some, of which the newest is meant."""
    with held(root, name) as folder:
        after, before = meant(folder, name, wanted), current_of(folder)
        if before != after:
            if before:
                write(folder / "history", "".join(f"{each}\n" for each in [*history_of(folder), before]))
            point(folder, after)
        return {"name": name, "before": before or None, "current": after}


def rollback(root: Path, name: str) -> dict[str, Any]:
    """Make the one used before the current one again."""
    with held(root, name) as folder:
        history, before = history_of(folder), current_of(folder)
        if not history:
            stop(USAGE, f"no earlier generation of {name} is there to go back to")
        point(folder, history[-1])
        write(folder / "history", "".join(f"{each}\n" for each in history[:-1]))
        return {"name": name, "before": before or None, "current": history[-1]}


def pin(root: Path, name: str, wanted: str, by: str) -> dict[str, Any]:
    """Note that the run `by` needs a generation; with nothing as `wanted`, that it needs none any more."""
    with held(root, name) as folder:
        file, identity = folder / "pins" / named(by, "a run"), ""
        file.parent.mkdir(exist_ok=True)
        if wanted:
            identity = meant(folder, name, current_of(folder) if wanted == "current" else wanted)
            write(file, identity)
        else:
            with contextlib.suppress(FileNotFoundError):
                file.unlink()
        return {"name": name, "id": identity or None, "run": by}


def gc(root: Path, name: str) -> list[dict[str, Any]]:
    """Remove what nobody needs: neither the current generation, nor the one to go back to, nor one that a run has
    pinned or a process runs from. What became of each, and why."""
    found = []
    with held(root, name) as folder:
        pins, current, before = pins_of(folder), current_of(folder), history_of(folder)[-1:]
        known = generations(folder)
        for place in known:
            users = users_of(place)
            why = ""
            if place.name == current:
                why = "in use"
            elif users:
                why = f"process {users[0]} runs from it"
            elif place.name in pins:
                why = f"pinned by run {pins[place.name][0]}"
            elif place.name in before:
                why = "the one to go back to"
            elif place == known[-1] and is_finished(place):
                why = "the one made last"
            freed = 0
            if not why:
                freed = remove(place)
            found.append(
                {"name": name, "id": place.name, "removed": not why, "why": why or "nobody needs it", "bytes": freed}
            )
        for rest in folder.glob(".removed-*"):  # a removal that was interrupted
            shutil.rmtree(rest, ignore_errors=True)
    return found


def read(root: Path, prefix: str, mode: str) -> dict[str, Any]:
    """A generation, or any environment, as it is, and what lies around it."""
    place = Path(os.path.expanduser(prefix))
    if not place.is_dir():
        stop(USAGE, f"there is no environment at {place}")
    begun = time.monotonic()
    snapshot = installed.read(place, mode)  # type: ignore[arg-type]
    seconds = time.monotonic() - begun
    return {"snapshot": snapshot.to_json(), "surroundings": surroundings.read().to_json(), "seconds": seconds}


ROLES: dict[str, Any] = {
    "look": look,
    "create": create,
    "list": list_all,
    "use": use,
    "rollback": rollback,
    "pin": pin,
    "gc": gc,
    "read": read,
}
