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
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from dflash.environments import installed

MISMATCH, STORAGE, USAGE = 3, 5, 2
"""The exit statuses of dflash.errors."""


def stop(status: int, line: str) -> NoReturn:
    """End with a line for the person who called."""
    sys.stderr.write(line + "\n")
    raise SystemExit(status)


@contextlib.contextmanager
def held(root: Path, name: str) -> Iterator[Path]:
    """The folder of an environment, for this process alone; the kernel lets go of it with the process."""
    folder = root / "envs" / name
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(str(folder / ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write(f"another process is at work on {folder}; waiting for it\n")
            sys.stderr.flush()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(descriptor)


def generations(folder: Path) -> list[Path]:
    """Finished and half-made, oldest first."""
    found = [each for each in folder.iterdir() if each.is_dir() and not each.is_symlink() and each.name != "pins"]
    return sorted(
        (each for each in found if not each.name.startswith(".")), key=lambda each: (each.stat().st_mtime, each.name)
    )


def is_finished(place: Path) -> bool:
    """Whether a generation was made to its end."""
    return (place / installed.RECORD).exists()


def current_of(folder: Path) -> str:
    """The generation in use, or nothing."""
    with contextlib.suppress(OSError):
        return os.readlink(str(folder / "current"))
    return ""


def history_of(folder: Path) -> list[str]:
    """The generations used before the current one, the latest last."""
    with contextlib.suppress(OSError):
        return (folder / "history").read_text().split()
    return []


def pins_of(folder: Path) -> dict[str, list[str]]:
    """Runs by the generation that they need."""
    found: dict[str, list[str]] = {}
    for file in sorted((folder / "pins").glob("*")) if (folder / "pins").is_dir() else []:
        found.setdefault(file.read_text().strip(), []).append(file.name)
    return found


def users_of(place: Path) -> list[int]:
    """Processes that run from a generation, by what they have mapped and by their command line."""
    mark, found = str(place).encode() + b"/", []
    for entry in Path("/proc").glob("[0-9]*"):
        for name in ("maps", "cmdline"):
            with contextlib.suppress(OSError):
                if mark in (entry / name).read_bytes() and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
                    break
    return sorted(found)


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
    aside = place.with_name(f".removed-{place.name}-{os.getpid()}")
    os.replace(str(place), str(aside))
    shutil.rmtree(aside)
    return sum(each.size for each in record.files.values()) if record else 0
