"""Where the generations of environments lie on a host, and the small steps that change that whole or not at all.

    ROOT/envs/NAME/ID/       a generation: a virtual environment, made once and never changed
    ROOT/envs/NAME/current   a link to the one in use
    ROOT/envs/NAME/history   the ones used before it, one a line, the latest last
    ROOT/envs/NAME/pins/RUN  the generation that a run needs

A generation is finished when it has its record, which is written last. One that has none was interrupted: nothing uses
it, and whoever makes it next begins it again. ID is the lock's, and -2, -3, ... when made again from the same lock.
Standard library, Python 3.8+; sent to the far end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from dflash.environments import installed

MISMATCH, STORAGE, USAGE = 3, 5, 2
"""The exit statuses of dflash.errors."""
NOTE = "note: "
"""Begins a line that is no error."""


def note(line: str) -> None:
    """Tell the person who called, at once."""
    sys.stderr.write(f"{NOTE}{line}\n")
    sys.stderr.flush()


def stop(status: int, line: str) -> NoReturn:
    """End with a line for the person who called."""
    sys.stderr.write(line + "\n")
    raise SystemExit(status)


def named(text: str, what: str) -> str:
    """A name that is one part of a path and no more; anything else ends the program."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text):
        stop(USAGE, f"{text!r} can not be the name of {what}")
    return text


@contextlib.contextmanager
def held(root: Path, name: str, *, make: bool = False) -> Iterator[Path]:
    """The folder of an environment, for this process alone; the kernel lets go of it with the process."""
    folder = root / "envs" / named(name, "an environment")
    if make:
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.is_dir():
        stop(USAGE, f"there is no environment {name} in {root / 'envs'}; ./inv env.create {name} makes one")
    descriptor = os.open(str(folder / ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"another process is at work on {folder}; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(descriptor)


GENERATION = re.compile(r"[0-9a-f]{16}(?:-\d+)?")


def generations(folder: Path) -> list[Path]:
    """Finished and half-made, in the order in which they were made."""
    found = [each for each in folder.iterdir() if GENERATION.fullmatch(each.name) and not each.is_symlink()]
    return sorted(found, key=_made)


def _made(place: Path) -> tuple[float, int, str]:
    record = place / installed.RECORD  # written once; the folder's own time moves whenever something is put into it
    number = int(place.name.partition("-")[2] or 1)
    return (record if record.exists() else place).stat().st_mtime, number, place.name


def is_finished(place: Path) -> bool:
    """Whether a generation was made to its end, and still says so."""
    return installed.read_record(place) is not None


def meant(folder: Path, name: str, wanted: str) -> str:
    """The finished generation `wanted`, or the newest whose id begins with that; none ends the program."""
    there = [each.name for each in generations(folder) if is_finished(each)]
    fitting = [each for each in there if each == wanted] or [each for each in there if each.startswith(wanted)]
    if not wanted or not fitting:
        cure = f"./inv env.create {name} makes one"
        stop(USAGE, f"there is no finished generation {wanted} of {name} in {folder}; {cure}")
    return fitting[-1]


def current_of(folder: Path) -> str:
    """The generation in use, or nothing."""
    with contextlib.suppress(OSError):
        return os.readlink(str(folder / "current"))
    return ""


def history_of(folder: Path) -> list[str]:
    """The generations used before the current one that are there still, the latest last."""
    with contextlib.suppress(OSError):
        return [each for each in (folder / "history").read_text().split() if is_finished(folder / each)]
    return []


def pins_of(folder: Path) -> dict[str, list[str]]:
    """Runs by the generation that they need."""
    found: dict[str, list[str]] = {}
    for file in sorted((folder / "pins").glob("*")) if (folder / "pins").is_dir() else []:
        found.setdefault(file.read_text().strip(), []).append(file.name)
    return found


def users_of(place: Path) -> list[int]:
    """Processes that run from a generation: by what they have mapped, their command line or their environment. One that
    was started through `current` may run from any that was in use."""
    mark, through = str(place).encode() + b"/", str(place.parent / "current").encode() + b"/"
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        maps, words, variables = (_bytes(entry / name) for name in ("maps", "cmdline", "environ"))
        is_python = _bytes(entry / "comm").startswith((b"python", b"pt_"))
        current = through in words or (is_python and through in variables)
        if (mark in maps or mark in words or current or mark in variables) and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return sorted(found)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def point(folder: Path, name: str) -> None:
    """Switch the link in one step."""
    draft = folder / f".current-{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    os.symlink(name, str(draft))
    os.replace(str(draft), str(folder / "current"))


def write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    draft.write_text(text)
    os.replace(str(draft), str(path))


def remove(place: Path) -> int:
    """Remove a generation, which is nowhere from the first moment on; its bytes."""
    if not place.exists():
        return 0
    record = installed.read_record(place)
    with contextlib.suppress(OSError):
        place.with_name(f".{place.name}-verified.json").unlink()
    aside = place.with_name(f".removed-{place.name}-{os.getpid()}")
    os.replace(str(place), str(aside))
    shutil.rmtree(aside)
    return sum(each.size for each in record.files.values()) if record else 0
