"""Packed rows of a set of any size: packed a window of documents at a time, written as they come, read by a map.

The file is the same as `save_rows` writes. `load_rows` maps it: a row's tensors are views of the file, so that rows
are in memory only while the system has room for them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import torch

from dflash.atomic import whole_file
from dflash.training.encoding import Encoded
from dflash.training.packing import TENSORS, Rows

WINDOW = 2**22
"""Tokens packed at once. Rows that are not full at a window's end stay so: of a thousand, a few."""

_TYPES = {torch.int32: "I32", torch.bool: "BOOL"}
_CHUNK = 2**24


def windows(documents: Iterable[Encoded], tokens: int = WINDOW) -> Iterator[list[Encoded]]:
    """The documents in lists of at least `tokens` tokens each, the last one of what is left."""
    window: list[Encoded] = []
    held = 0
    for document in documents:
        window.append(document)
        held += len(document.tokens)
        if held >= tokens:
            yield window
            window, held = [], 0
    if window:
        yield window


@contextmanager
def writing_rows(path: Path) -> Iterator[Callable[[Mapping[int, Rows]], None]]:
    """Gives a function that adds packed rows; when the block ends well, `path` is there, whole, with all of them.

    Until then each tensor grows in a file of its own in a hidden folder beside `path`, which is removed in the end; one
    that a killed process has left is replaced.

    Raises:
        OSError: the system refused (a full disk, say).
    """
    parts = path.with_name(f".{path.name}.parts")
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir(parents=True)
    try:
        with ExitStack() as closing:
            writer = _Writer(parts, closing)
            yield writer.add
        with whole_file(path) as draft, draft.open("wb") as file:
            writer.assemble(file)
    finally:
        shutil.rmtree(parts, ignore_errors=True)


class _Writer:
    """Grows one file a tensor, and puts them together as safetensors lays them out."""

    def __init__(self, folder: Path, closing: ExitStack) -> None:
        self._folder, self._closing = folder, closing
        self._files: dict[str, IO[bytes]] = {}
        self._types: dict[str, torch.dtype] = {}
        self._shapes: dict[str, list[int]] = {}

    def add(self, packed: Mapping[int, Rows]) -> None:
        """Append the rows of each bucket to what is there of it."""
        for bucket, rows in packed.items():
            for name in TENSORS:
                self._append(f"{bucket}/{name}", getattr(rows, name))

    def _append(self, key: str, tensor: torch.Tensor) -> None:
        if key not in self._files:
            file = self._folder.joinpath(key.replace("/", "-")).open("wb")
            self._files[key] = self._closing.enter_context(file)
            self._types[key], self._shapes[key] = tensor.dtype, [0, tensor.shape[1]]
        self._files[key].write(tensor.contiguous().numpy().data)
        self._shapes[key][0] += len(tensor)

    def assemble(self, file: IO[bytes]) -> None:
        """Write the header, then each tensor, whose own file is removed at once: the disk never holds all twice."""
        order = sorted(self._files, key=lambda key: (-self._types[key].itemsize, key))
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for key in order:
            rows, length = self._shapes[key]
            start, end = end, end + rows * length * self._types[key].itemsize
            header[key] = {"dtype": _TYPES[self._types[key]], "shape": [rows, length], "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        file.write(len(text).to_bytes(8, "little") + text)
        for key in order:
            part = self._folder / key.replace("/", "-")
            with part.open("rb") as source:
                shutil.copyfileobj(source, file, _CHUNK)
            part.unlink()
