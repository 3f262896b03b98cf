"""A kept compile cache as data: what its manifest says, and everything that can be wrong with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dflash.compilation.parcels import File, Parcel
from dflash.errors import DFlashError

SCHEMA = 2
"""Of manifest and archive. It is part of the id: what two versions make of the same files does not meet."""
ARCHIVE, MANIFEST, SIGNATURE = "files.zst", "manifest.json", "signature"


class VaultError(DFlashError):
    """A snapshot can not be used."""

    exit_code = 8


class DamagedSnapshot(VaultError):
    """It is not what was saved."""


class OtherVersion(VaultError):
    """It is whole, and another version of dflash wrote it."""


class ForeignSnapshot(VaultError):
    """It was signed with another key: somebody else's, in a vault that several share."""


@dataclass(frozen=True)
class Snapshot:
    """A kept cache. `key` is what must be equal for it to be valid, `recorded` what is good to know: driver, host,
    path. `graphs` is how many the proof found in it, `saved` a time of this clock, `number` an order no clock sets.
    """

    id: str
    key: Mapping[str, str]
    recorded: Mapping[str, str]
    graphs: int
    saved: float
    number: int
    parcels: tuple[Parcel, ...]

    @property
    def files(self) -> int:
        """How many files it has."""
        return sum(len(parcel.files) for parcel in self.parcels)

    @property
    def bytes(self) -> int:
        """Of the files, unpacked."""
        return sum(file.size for parcel in self.parcels for file in parcel.files)

    def to_json(self) -> dict[str, Any]:
        """As the manifest has it."""
        return {
            "schema": SCHEMA,
            "id": self.id,
            "key": dict(self.key),
            "recorded": dict(self.recorded),
            "graphs": self.graphs,
            "saved": self.saved,
            "number": self.number,
            "parcels": [parcel.to_json() for parcel in self.parcels],
        }

    def shown(self) -> dict[str, Any]:
        """For a person: without each file."""
        kept = {name: value for name, value in self.to_json().items() if name not in ("parcels", "schema")}
        return {**kept, "files": self.files, "bytes": self.bytes}


@dataclass(frozen=True)
class Verdict:
    """What `verify` found of a snapshot: `wrong` says what, and is empty when nothing is."""

    id: str
    state: Literal["ok", "damaged", "foreign", "other", "unusable"]
    wrong: str = ""


def parse_manifest(manifest: bytes) -> Snapshot:
    """A manifest as its snapshot.

    Raises:
        OtherVersion: of a schema that is not ours.
        DamagedSnapshot: it is no manifest, or has a path or a mode that no cache has: what came from another machine is
            checked before anything of it is written.
    """
    try:
        plain = json.loads(manifest)
        if plain["schema"] != SCHEMA:
            what = f"its manifest has schema {plain['schema']}, and this dflash reads {SCHEMA}"
            raise OtherVersion(what, cure="pre-warm again")
        parcels = tuple(Parcel.from_json(each) for each in plain["parcels"])
        made = Snapshot(
            plain["id"], plain["key"], plain["recorded"], plain["graphs"], plain["saved"], plain["number"], parcels
        )
        right = made.id == identity_of(made.key, parcels)
        right = right and all(_is_inside(file) for parcel in parcels for file in parcel.files)
    except (ValueError, KeyError, TypeError, AttributeError) as failure:
        raise DamagedSnapshot("its manifest can not be read") from failure
    if not right:
        raise DamagedSnapshot("its manifest is not that of a compile cache")
    return made


def _is_inside(file: File) -> bool:
    parts = file.path.split("/")
    return not {"", ".", ".."} & set(parts) and "\0" not in file.path and file.mode == file.mode & 0o777


def identity_of(key: Mapping[str, str], parcels: tuple[Parcel, ...]) -> str:
    """The id of a snapshot: a hash of key and files, however they are packed."""
    files = [[file.path, file.size, file.mode, file.sha256] for parcel in parcels for file in parcel.files]
    return hashlib.sha256(json.dumps([SCHEMA, dict(key), files], sort_keys=True).encode()).hexdigest()[:16]


def differing(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """The ingredients in which two keys differ, as `name: a's -> b's`."""
    names = sorted(a.keys() | b.keys())
    return [f"{name}: {a.get(name, 'none')} -> {b.get(name, 'none')}" for name in names if a.get(name) != b.get(name)]
