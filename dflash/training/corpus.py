"""Real text that every machine has: the sources and documentation strings of Python's standard library."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from dflash.errors import DataError

SPLITS = ("target", "prompts", "heldout")


@dataclass(frozen=True)
class Document:
    """One source file: its name below the standard library's folder, and its text."""

    name: str
    text: str


def standard_library(max_bytes: int) -> list[Document]:
    """The ASCII modules of the running interpreter's standard library, in name order, up to `max_bytes`.

    Raises:
        DataError: the interpreter was installed without its sources, or `max_bytes` is less than one module.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    documents: list[Document] = []
    size = 0
    for path in sorted(folder.glob("*.py")) + sorted(folder.glob("[a-z]*/*.py")):
        if path.parent.name in {
            "test",
            "idlelib",
            "lib2to3",
            "site-packages",
            "dist-packages",
            "__pycache__",
        }:
            continue
        raw = path.read_bytes()
        if not raw.isascii() or len(raw) < 512:
            continue
        if size + len(raw) > max_bytes:
            break
        documents.append(Document(str(path.relative_to(folder)), raw.decode("ascii")))
        size += len(raw)
    if not documents:
        raise DataError(
            f"no standard library source of at most {max_bytes} bytes was found",
            where=str(folder),
            cure="raise corpus_bytes, or install the interpreter's full standard library",
        )
    return documents


def split_of(name: str) -> str:
    """The split a document belongs to: 8 in 10 train the target, 1 gives prompts, 1 is held out. By name alone."""
    bucket = hashlib.sha256(name.encode()).digest()[0] % 10
    return SPLITS[0] if bucket < 8 else SPLITS[bucket - 7]


def split(documents: list[Document], name: str) -> list[Document]:
    """The documents of one split."""
    return [document for document in documents if split_of(document.name) == name]


def digest(documents: list[Document]) -> str:
    """SHA-256 over names and texts, in order."""
    state = hashlib.sha256()
    for document in documents:
        state.update(f"{document.name}\0{len(document.text)}\0{document.text}".encode())
    return state.hexdigest()
