"""An environment as it was read: plain data, which travels from a far end as JSON. Standard library, Python 3.8+."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["full", "cached", "quick"]
"""How files are compared: hash all; hash those whose stat changed since they were hashed; sizes and times only."""


@dataclass(frozen=True)
class Claim:
    """One line of a RECORD: SHA-256 (hex) and size, where it gives them."""

    sha256: str | None
    size: int | None


@dataclass(frozen=True)
class Distribution:
    """One installed distribution. `claims` and `folder` are paths relative to the environment's root, `requires` the
    requirements of its METADATA."""

    name: str
    version: str
    folder: str
    claims: Mapping[str, Claim]
    record_sha256: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class OnDisk:
    """One file as it is, or was when it was recorded: size in bytes, SHA-256 (None when its content was not looked at),
    time of its last change in nanoseconds."""

    size: int
    sha256: str | None
    mtime: int = 0


@dataclass(frozen=True)
class Record:
    """What was written down when a generation was made: the lock's id, the interpreter, the time, and every file."""

    lock: str
    python: str
    made: float
    files: Mapping[str, OnDisk]


@dataclass(frozen=True)
class Snapshot:
    """An environment as read: everything `verify.judge` looks at.

    `record` is what a generation was when it was made; `made_with` and `stamp` are the same for `.venv`, by SHA-256 of
    each RECORD. All are None for an environment that this project did not make. `settings` is pyvenv.cfg.
    """

    distributions: tuple[Distribution, ...]
    files: Mapping[str, OnDisk]
    made_with: Mapping[str, str] | None
    stamp: Mapping[str, str] | None
    mode: Mode
    hashed: int
    hashed_bytes: int = 0
    record: Record | None = None
    settings: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the way back from a far end."""
        record = self.record
        return {
            **{key: getattr(self, key) for key in ("made_with", "stamp", "mode", "hashed", "hashed_bytes", "settings")},
            "distributions": [
                [
                    d.name,
                    d.version,
                    d.folder,
                    d.record_sha256,
                    d.requires,
                    {p: [c.sha256, c.size] for p, c in d.claims.items()},
                ]
                for d in self.distributions
            ],
            "files": packed(self.files),
            "record": record and [record.lock, record.python, record.made, packed(record.files)],
        }

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Snapshot:
        """What `to_json` gave."""
        distributions = tuple(
            Distribution(name, version, folder, {p: Claim(*c) for p, c in claims.items()}, digest, tuple(requires))
            for name, version, folder, digest, requires, claims in plain["distributions"]
        )
        record = None
        if plain["record"]:
            lock, python, made, files = plain["record"]
            record = Record(lock, python, made, unpacked(files))
        given = {**plain, "distributions": distributions, "files": unpacked(plain["files"]), "record": record}
        return Snapshot(**given)


def packed(files: Mapping[str, OnDisk]) -> dict[str, list[Any]]:
    """Files as plain values."""
    return {path: [each.size, each.sha256, each.mtime] for path, each in files.items()}


def unpacked(plain: Mapping[str, list[Any]]) -> dict[str, OnDisk]:
    """What `packed` gave."""
    return {path: OnDisk(*each) for path, each in plain.items()}
