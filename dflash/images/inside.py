"""Runs inside a container: reads the environment and every file of some folders, and prints them as JSON.

Sent along as one file; standard library, Python 3.8+.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
import sys
from pathlib import Path

from dflash.environments import installed, surroundings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def main() -> int:
    """Arguments: the environment's root, then the other folders. Prints {"snapshot", "surroundings", "markers",
    "files"}."""
    prefix, *others = sys.argv[1:]
    snapshot = installed.read(Path(prefix), "full")
    known = {prefix + "/" + path: file.sha256 for path, file in snapshot.files.items()}
    files = {}
    for folder in (prefix, *others):
        files.update(every_file(folder, known))
    found = {"snapshot": snapshot.to_json(), "surroundings": surroundings.read().to_json(), "files": files}
    json.dump({**found, "markers": markers()}, sys.stdout, separators=(",", ":"))
    return 0


def every_file(folder: str, known: Mapping[str, str | None]) -> dict[str, list[object]]:
    """[size, SHA-256] of each file below `folder` by path, [0, what it points at] of each link. `known` are digests of
    files that have been read already."""
    found: dict[str, list[object]] = {}
    for inside, _, names in os.walk(folder):
        for name in names:
            path = inside + "/" + name
            about = os.lstat(path)
            if stat.S_ISLNK(about.st_mode):
                found[path] = [0, os.readlink(path)]
            else:
                found[path] = [about.st_size, known.get(path) or _digest(path)]
    for inside, folders, _ in os.walk(folder):  # os.walk counts a link to a folder among the folders
        for name in folders:
            if os.path.islink(inside + "/" + name):
                found[inside + "/" + name] = [0, os.readlink(inside + "/" + name)]
    return found


def markers() -> dict[str, str]:
    """The variables of PEP 508, of this interpreter."""
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": platform.python_version(),
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    }


def _digest(path: str) -> str | None:
    state = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                state.update(piece)
    except OSError:
        return None
    return state.hexdigest()
