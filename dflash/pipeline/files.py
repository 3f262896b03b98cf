"""Text and hashes of what a pipeline keeps."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from dflash.atomic import sha256, whole_file


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text`, whole and durably. Raises OSError, and then leaves the old file."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def canonical(value: Any) -> str:
    """The one JSON text of a value, for hashing."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(data: bytes | str) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content in hex; of its target for a symbolic link."""
    return digest(os.fsencode(os.readlink(path))) if path.is_symlink() else sha256(path)
