"""What a step made: its files, the tensors in them, and the rows of its metrics, each as a hash that is the same
wherever and whenever the same was made."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.pipeline.files import canonical
from dflash.pipeline.provenance.hashes import Hashes
from dflash.pipeline.store import Done

METRICS = "metrics.jsonl"
COMPARED = ("step", "loss", "grad_norm", "accuracy", "accept_len", "tokens", "lr", "heldout")
"""Of a row of metrics what does not depend on how fast the machine is."""
_TENSORS = ".safetensors"
_PIECE = 1 << 20


def artifacts(folder: Path, done: Done, hashes: Hashes) -> dict[str, dict[str, str]]:
    """By path, {"sha256": of the file, "tensors": of the tensors in a safetensors file}; without the second where the
    file is a link, which is known by its target, or can not be read."""
    found = {}
    for output in done.outputs:
        found[output.path] = {"sha256": output.sha256}
        path = folder / output.path
        if output.path.endswith(_TENSORS) and not path.is_symlink():
            with contextlib.suppress(OSError):
                found[output.path]["tensors"] = hashes.digest(path, "tensors", tensors_digest)
    return found


def tensors_digest(path: Path) -> str:
    """A hash of all tensors of a safetensors file: their names, types, shapes and bytes, in the order of their names,
    whatever else its header says. "" of a file that is none. Raises OSError."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        try:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
            for name, tensor in sorted(header.items()):
                if name == "__metadata__":
                    continue
                begin, end = tensor["data_offsets"]
                state.update(canonical([name, tensor["dtype"], tensor["shape"]]).encode())
                file.seek(8 + size + begin)
                while begin < end:
                    piece = file.read(min(_PIECE, end - begin))
                    if not piece:
                        return ""
                    state.update(piece)
                    begin += len(piece)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError):
            return ""
    return state.hexdigest()


def metrics(folder: Path, hashes: Hashes | None = None) -> dict[str, Any] | None:
    """{"rows": how many, "digest": a hash of what they say} of a step's metrics; None where there are none, or they can
    not be read. With `hashes` they are read only if they may have changed."""
    file = folder / METRICS
    try:
        said = hashes.digest(file, f"rows of {COMPARED}", _rows) if hashes else _rows(file)
    except OSError:
        return None
    rows, found = said.split()
    return {"rows": int(rows), "digest": found, "file": METRICS}


def _rows(path: Path) -> str:
    """How many rows there are, and a hash of what they say."""
    count, state = 0, hashlib.sha256()
    with path.open("rb") as file:  # line by line: a long training has millions
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                count += 1
                state.update(json.dumps(compared(row), sort_keys=True).encode() + b"\n")
    return f"{count} {state.hexdigest()}"


def compared(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what depends on how fast the machine is."""
    return {name: row[name] for name in COMPARED if name in row}
