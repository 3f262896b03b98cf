"""What a step made: its files, the tensors in them, and the rows of its metrics, each as a hash that is the same
wherever and whenever the same was made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.pipeline.files import canonical
from dflash.pipeline.store import Done

METRICS = "metrics.jsonl"
COMPARED = ("step", "loss", "grad_norm", "accuracy", "accept_len", "tokens", "lr", "heldout")
"""Of a row of metrics what does not depend on how fast the machine is."""
_TENSORS = ".safetensors"
_PIECE = 1 << 20


def artifacts(folder: Path, done: Done) -> dict[str, dict[str, str]]:
    """By path, {"sha256": of the file, "tensors": of the tensors in a safetensors file}. Raises OSError."""
    found = {}
    for output in done.outputs:
        found[output.path] = {"sha256": output.sha256}
        if output.path.endswith(_TENSORS):
            found[output.path]["tensors"] = tensors_digest(folder / output.path)
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


def metrics(folder: Path) -> dict[str, Any] | None:
    """{"rows": how many, "digest": a hash of what they say} of a step's metrics, or None. Raises OSError."""
    if not (folder / METRICS).is_file():
        return None
    count, state = 0, hashlib.sha256()
    with (folder / METRICS).open("rb") as file:  # line by line: a long training has millions
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                count += 1
                state.update(json.dumps(compared(row), sort_keys=True).encode() + b"\n")
    return {"rows": count, "digest": state.hexdigest(), "file": METRICS}


def compared(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what depends on how fast the machine is."""
    return {name: row[name] for name in COMPARED if name in row}
