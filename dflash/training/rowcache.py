"""Packed rows kept by what they were made from, so that nothing is encoded twice and nothing stale is served.

The pipeline's step keys already tell when the data step has to run again. They are coarse on purpose: any edit of a
model's code, any other setting. This key holds what decides the rows, and nothing else: the bytes of the sources, the
tokenizer as it is loaded, the chat template, the settings that matter, and the code that reads and encodes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from dflash.atomic import whole_folder, write_json
from dflash.errors import storage_error

ENTRY = "entry.json"
_CODE = (
    *("account", "corpus", "dataset", "encoders", "encoding", "files", "packing"),
    *("parquet", "records", "responses", "rowcache", "streaming"),
)
_LIBRARIES = ("jinja2", "tokenizers", "torch", "transformers")


def key_of(sources: Mapping[str, str], tokenizer: PreTrainedTokenizerBase, settings: Mapping[str, Any]) -> str:
    """SHA-256 over the `sources` (hash by path), a fast tokenizer's whole state, the settings and the code."""
    home = Path(__file__).parent
    fields = {
        "sources": dict(sources),
        "tokenizer": hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "template": tokenizer.chat_template,
        "settings": dict(settings),
        "code": {name: hashlib.sha256((home / f"{name}.py").read_bytes()).hexdigest() for name in _CODE},
        "libraries": {name: version(name) for name in _LIBRARIES} | {"python": platform.python_version()},
    }
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


class RowCache:
    """A folder of entries, each the files of one data step, shared with the step's folder by hard links."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def restore(self, key: str, out: Path) -> bool:
        """Put the files kept under `key` into `out`; False when there are none, or one was changed since.

        Raises:
            StorageError: the system refused.
        """
        place = self._folder / key
        try:
            entry = json.loads((place / ENTRY).read_bytes())
            if any(_identity(place / name) != identity for name, identity in entry.items()):
                return False
        except (FileNotFoundError, ValueError):
            return False
        try:
            for name in entry:
                draft = out / f".{name}.{os.getpid()}.tmp"
                _link(place / name, draft)
                draft.replace(out / name)
        except OSError as failure:
            raise storage_error(failure, failure.filename or out) from failure
        return True

    def keep(self, key: str, out: Path, names: Sequence[str]) -> None:
        """Keep the files `names` of `out` under `key`.

        Raises:
            StorageError: the system refused.
        """
        try:
            with whole_folder(self._folder / key) as draft:
                for name in names:
                    _link(out / name, draft / name)
                write_json(draft / ENTRY, {name: _identity(draft / name) for name in names})
        except OSError as failure:
            raise storage_error(failure, failure.filename or self._folder) from failure


def _identity(path: Path) -> list[int]:
    """Size in bytes and time of the last change in ns: what an edit of a file that nobody should edit changes."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another disk, or one that knows no links
        shutil.copy2(source, target)
