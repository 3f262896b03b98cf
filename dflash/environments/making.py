"""The far end makes a generation: a virtual environment with exactly what a lock pins, by uv.

Standard library, Python 3.8+; part of the archive that far.py runs, which also holds the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any, NoReturn

from dflash.environments import installed
from dflash.environments.bootstrap import pip_settings, uv_environment
from dflash.environments.generations import MISMATCH, STORAGE, generations, held, is_finished, remove, stop


def create(
    root: Path, name: str, lock: str, python: str, uv: str, wheels: str, backend: str, again: str
) -> dict[str, Any]:
    """Make the generation of `lock` unless it is there. `python` is a version range, `wheels` a folder of wheels, or
    nothing for an index; `backend` says where uv finds builds of torch that no index here has; `again` asks for another
    generation of the same lock."""
    with held(root, name, make=True) as folder:
        finished = [each for each in generations(folder) if each.name.split("-")[0] == lock and is_finished(each)]
        if finished and not again:
            return {"id": finished[-1].name, "made": False, "seconds": 0.0}
        free = (lock if number == 1 else f"{lock}-{number}" for number in range(1, 1000))
        place = next(folder / each for each in free if not is_finished(folder / each))
        begun = time.monotonic()
        remove(place)
        try:
            version = build(place, python, uv, wheels, backend)
            installed.write_record(place, lock_text_id(), version, time.time())
        except (OSError, SystemExit):  # a full disk, say: what is half-made would only keep it full
            remove(place)
            raise
        return {"id": place.name, "made": True, "seconds": time.monotonic() - begun}


def build(place: Path, python: str, uv: str, wheels: str, backend: str) -> str:
    """A virtual environment at `place`, with exactly what the lock pins; its Python's version."""
    environment = uv_settings(from_index=not wheels)
    found = run([uv, "python", "find", "--no-python-downloads", "--system", python], environment)
    if found.returncode:
        stop(MISMATCH, f"there is no Python {python} here; install one (Debian: apt-get install python3 python3-dev)")
    must([uv, "venv", "--quiet", "--no-project", "--python", found.stdout.strip(), str(place)], environment)
    with zipfile.ZipFile(sys.argv[0]) as archive:
        for each in ("requirements.lock", "env.yaml"):
            (place / each).write_bytes(archive.read(each))
    environment.setdefault("UV_LINK_MODE", link_mode(uv, place, environment))
    interpreter = str(place / "bin" / "python")
    sync = [uv, "pip", "sync", "--quiet", "--require-hashes", "--python", interpreter]
    lock = str(place / "requirements.lock")
    ways = [["--no-index", "--find-links", wheels]] if wheels else [[], ["--torch-backend", backend]]
    must_one_of([[*sync, *way, lock] for way in ways], environment)
    return must([interpreter, "-ISc", "import platform; print(platform.python_version())"], environment).strip()


def must_one_of(ways: list[list[str]], environment: dict[str, str]) -> None:
    """Run the first of several ways that works. When none does, what the first one said is what tells."""
    done = [run(ways[0], environment)]
    for words in ways[1:]:
        if done[-1].returncode:
            done.append(run(words, environment))
    if done[-1].returncode:
        fail(done[0])


def must(words: list[str], environment: dict[str, str]) -> str:
    """Run a step of making an environment; its output. One that fails ends the program, with what it said."""
    done = run(words, environment)
    if done.returncode:
        fail(done)
    return done.stdout


def fail(done: subprocess.CompletedProcess[str]) -> NoReturn:
    """End the program with what a step said."""
    said = " ".join(done.stderr.split())[:600] or f"it ended with {done.returncode}"
    full = "No space left on device" in said
    stop(STORAGE if full else MISMATCH, f"the environment could not be made as its lock pins it: {said}")


def link_mode(uv: str, place: Path, environment: dict[str, str]) -> str:
    """How uv brings files from its cache: as clones that share blocks where the file system can, else as copies.

    Not as hard links: a file edited in one environment would be edited in uv's cache, in every other environment, and
    in the clean one that is made to replace the damaged one.
    """
    cache = run([uv, "cache", "dir"], environment).stdout.strip()
    source, target = Path(cache) / f".clone-{os.getpid()}", place / f".clone-{os.getpid()}"
    try:
        source.write_bytes(b"x" * 4096)
        with source.open("rb") as old, target.open("wb") as new:
            fcntl.ioctl(new.fileno(), 0x40049409, old.fileno())  # FICLONE
        return "clone"
    except OSError:
        return "copy"
    finally:
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.unlink()


def uv_settings(*, from_index: bool) -> dict[str, str]:
    """The variables for uv: an index as pip is set up here, no interpreter fetched, none of the caller's paths."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    base = {key: value for key, value in os.environ.items() if key not in hidden}
    settings: dict[str, str] = {}
    if from_index:
        asked = run([sys.executable, "-Im", "pip", "--disable-pip-version-check", "config", "list"], base)
        settings = pip_settings(asked.stdout) if asked.returncode == 0 else {}
    variables = {**uv_environment(settings, base), "UV_PYTHON_DOWNLOADS": "never"}
    if "UV_LINK_MODE" not in base:
        del variables["UV_LINK_MODE"]  # which link_mode decides
    return variables


def lock_text_id() -> str:
    """The whole id of the lock in the archive."""
    with zipfile.ZipFile(sys.argv[0]) as archive:
        return hashlib.sha256(archive.read("requirements.lock")).hexdigest()


def run(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as failure:
        return subprocess.CompletedProcess(words, 127, "", f"{words[0]}: {failure.strerror}")
