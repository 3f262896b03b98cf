"""The environment that this process runs in: its lock, its packages, and the image that it came in."""

from __future__ import annotations

import contextlib
import platform
import sys
from pathlib import Path
from typing import Any

from dflash.environments.spec import EnvironmentSpec, read_spec
from dflash.errors import DFlashError
from dflash.pipeline.files import file_digest
from dflash.pipeline.keys import HOME, stamped_lock
from dflash.pipeline.provenance.image import image
from dflash.pipeline.provenance.packages import packages


def environment(home: Path = HOME, prefix: Path | None = None) -> dict[str, Any]:
    """What there is to say of it; None for what nothing here says, such as the lock and the name of a Python that is
    no environment of this project."""
    prefix = prefix or Path(sys.prefix)
    lock = stamped_lock(prefix) or None
    spec = _spec(home, prefix, lock)
    versions = packages()
    return {
        "lock": lock,
        "name": spec.name if spec else None,
        "generation": prefix.name if prefix.parent.parent.name == "envs" else None,
        "min_driver": spec.min_driver if spec else None,
        "python": platform.python_version(),
        "torch": versions.get("torch"),
        "image": image(prefix),
        "packages": versions,
    }


def _spec(home: Path, prefix: Path, lock: str | None) -> EnvironmentSpec | None:
    """The declaration: a generation keeps its own; of another environment, that which has the same lock."""
    places = [prefix, *sorted((home / "envs").glob("*"))]
    for place in places:
        with contextlib.suppress(DFlashError, OSError):
            if (place / "env.yaml").is_file() and file_digest(place / "requirements.lock") == lock:
                return read_spec(place / "env.yaml")
    return None
