"""The image that this process runs in. It knows what it was made from, but not its own digest, which is a hash of that:
whoever starts the container says it, by the variable DFLASH_IMAGE, as `./inv provision` and `./inv export` do. By what
it was built is in no image, as two builders that pack the same bytes must make the same one: the build's own record has
it, where that is."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.environments.installed import parse_stamp

IMAGE = Path("/opt/env")
"""Where an image that `./inv build` made has its environment (docker/environment.sh)."""

VARIABLE = "DFLASH_IMAGE"
"""REPOSITORY@sha256:… of the image that a container was started from."""


def image(prefix: Path, place: Path = IMAGE, environ: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """{"lock", "spec", "base": the digest of its base, "digest": its own}, as far as that is known, of the image whose
    environment is at `prefix`; None for any other environment."""
    if prefix != place:
        return None
    try:
        stamp = parse_stamp((prefix / "dflash-stamp").read_text(encoding="utf-8"))
    except OSError:
        return None
    known: dict[str, Any] = {name: stamp[name] for name in ("lock", "spec", "base") if stamp.get(name)}
    if told := re.search(r"@(sha256:[0-9a-f]{64})$", environ.get(VARIABLE, "")):
        known["digest"] = told[1]
    return known


def with_build(known: Mapping[str, Any] | None, root: Path) -> dict[str, Any] | None:
    """What is known of an image, with the "commit" that it was built from and by which "builder", if the record of its
    build is below `root`."""
    if not known or not known.get("digest"):
        return dict(known) if known else None
    for record in (root / "build").glob(f"*/{known['digest'].removeprefix('sha256:')}/record.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            told = json.loads(record.read_bytes())
            return {**known, "commit": told["commit"], "base": told["base"]["digest"], "builder": told["tools"]}
    return dict(known)
