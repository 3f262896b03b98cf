"""The vault keeps compile caches: immutable snapshots, found by everything that decides whether they are valid.

    VAULT/snapshots/ID/manifest.json    what it is: key, files with their hashes, what was recorded beside
    VAULT/snapshots/ID/files.zst        the files (parcels.py)
    VAULT/snapshots/ID/signature        HMAC-SHA256 of manifest.json with the owner's key
    VAULT/pins/NAME                     the id of a snapshot that must stay
    VAULT/damaged/ID...                 what was found damaged: set aside, never used

ID is a hash of key and files, so saving the same cache twice is saving it once. A snapshot is made beside its place and
renamed, and nothing but `remove` deletes one. Entries of a compile cache are pickles: only what was signed with a key
that this user has is ever restored, and nothing is unpickled to be verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.atomic import sync, whole_file
from dflash.compilation.holders import holders
from dflash.compilation.parcels import DamagedParcel, Parcel, check, pack, unpack, wanted
from dflash.compilation.signing import Signer
from dflash.errors import BusyError, DFlashError, UsageError, storage_error

SCHEMA = 1


class VaultError(DFlashError):
    """A snapshot can not be used."""

    exit_code = 8


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


class Vault:
    """A vault's folder, which several hosts may share."""

    def __init__(self, folder: Path, key_file: Path | None = None) -> None:
        """`key_file` holds the secret that snapshots are signed with; it is made when it is missing."""
        self.folder = folder
        self._signer = Signer(key_file or Path.home() / ".dflash" / "vault.key")

    # --- save

    def save(self, cache: Path, key: Mapping[str, str], recorded: Mapping[str, str], graphs: int) -> Snapshot:
        """Keep what is in `cache` now. The same files under the same key are kept once.

        Raises:
            VaultError: there is nothing in the cache.
            StorageError: the vault can not be written; nothing half-written is left to be used.
        """
        names = wanted(cache)
        if not names:
            raise VaultError("there is nothing in the cache to keep", where=str(cache))
        draft = self.folder / f".saving-{secrets.token_hex(8)}"
        try:
            draft.mkdir(parents=True, mode=0o700)
            parcels = tuple(pack(cache, names, draft / "files.zst"))
            identity = _identity(key, parcels)
            number = max((each.number for each in self.listed()), default=0) + 1
            made = Snapshot(identity, dict(key), dict(recorded), graphs, time.time(), number, parcels)
            manifest = json.dumps(made.to_json(), sort_keys=True).encode()
            for name, content in (("manifest.json", manifest), ("signature", self._signer.sign(manifest).encode())):
                (draft / name).write_bytes(content)
                sync(draft / name)
            sync(draft)
            return self._keep(draft, made)
        except OSError as failure:
            raise storage_error(failure, failure.filename or self.folder) from failure
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _keep(self, draft: Path, made: Snapshot) -> Snapshot:
        place = self._place(made.id)
        place.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # not empty: it is there already, by us or by another saver
            draft.rename(place)
            sync(place.parent)
            return made
        return self.load(made.id)

    # --- find

    def find(self, key: Mapping[str, str]) -> Snapshot | None:
        """The snapshot for exactly this key with the most graphs, the latest of those."""
        fitting = [each for each in self.listed() if each.key == dict(key)]
        return max(fitting, key=lambda each: (each.graphs, each.number), default=None)

    def why_not(self, key: Mapping[str, str]) -> list[str]:
        """Why no snapshot fits: the ingredients in which the nearest one differs, as `name: theirs -> ours`."""
        known = self.listed()
        if not known:
            return ["the vault is empty"]
        return min((differing(each.key, key) for each in known), key=len)

    def listed(self) -> list[Snapshot]:
        """All whole snapshots that this user may restore, oldest first; one that is not is passed over here, and named
        by `verify`."""
        found = []
        for place in sorted((self.folder / "snapshots").glob("*")) if (self.folder / "snapshots").is_dir() else []:
            with contextlib.suppress(VaultError):
                found.append(self.load(place.name))
        return sorted(found, key=lambda each: each.number)

    def load(self, identity: str) -> Snapshot:
        """A snapshot by its id, its signature checked.

        Raises:
            VaultError: there is none, it is damaged, or it was not signed with this user's key.
        """
        place = self._place(identity)
        try:
            manifest = (place / "manifest.json").read_bytes()
            signature = (place / "signature").read_text()
        except FileNotFoundError:
            raise VaultError(f"there is no snapshot {identity}", where=str(self.folder), cure="list them") from None
        except OSError as failure:
            raise VaultError(f"snapshot {identity} can not be read ({failure.strerror})", where=str(place)) from failure
        self._owned(place)
        if not hmac.compare_digest(signature, self._signer.sign(manifest)):
            cure = f"it was changed, or saved with another key than {self._signer.key_file}"
            raise VaultError(f"snapshot {identity} is not signed with your key", where=str(place), cure=cure)
        plain = json.loads(manifest)
        parcels = tuple(Parcel.from_json(each) for each in plain["parcels"])
        made = Snapshot(
            plain["id"], plain["key"], plain["recorded"], plain["graphs"], plain["saved"], plain["number"], parcels
        )
        if made.id != identity or _identity(made.key, parcels) != identity:
            raise VaultError(f"snapshot {identity} is not what its name says", where=str(place))
        return made

    def _owned(self, place: Path) -> None:
        for path in (place, place / "manifest.json", place / "files.zst"):
            status = path.stat()
            if status.st_uid not in (os.geteuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                what = "others than you and root can write it"
                raise VaultError(what, where=str(path), cure="a cache holds code: make sure who wrote it")

    # --- use

    def restore(self, identity: str, cache: Path) -> Snapshot:
        """Put exactly the bytes of a snapshot at `cache`. What is there is moved aside, unless a process uses it.

        Raises:
            BusyError: a process uses the folder.
            VaultError: the snapshot is damaged, and set aside now; or not this user's to restore.
            StorageError: `cache` can not be written; what was there is there still.
        """
        snapshot = self.load(identity)
        users = holders(cache)
        if users:
            cure = "wait for it, or name another folder"
            raise BusyError(f"process {users[0]} uses this compile cache", where=str(cache), cure=cure)
        draft = cache.with_name(f".{cache.name}.{os.getpid()}.restoring")
        shutil.rmtree(draft, ignore_errors=True)
        try:
            draft.mkdir(parents=True)
            unpack(self._place(identity) / "files.zst", snapshot.parcels, draft)
            if cache.exists() and any(cache.iterdir()):
                cache.rename(_aside(cache))
            elif cache.exists():
                cache.rmdir()
            draft.rename(cache)
        except DamagedParcel as failure:
            raise self._set_aside(identity, failure) from failure
        except OSError as failure:
            raise storage_error(failure, failure.filename or cache) from failure
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return snapshot

    def verify(self) -> Iterator[tuple[str, str]]:
        """(id, what is wrong) of every snapshot; nothing is wrong where it is empty. Damaged ones are set aside."""
        for place in sorted((self.folder / "snapshots").glob("*")):
            try:
                check(place / "files.zst", self.load(place.name).parcels)
            except (DamagedParcel, OSError) as failure:
                yield place.name, str(self._set_aside(place.name, failure))
            except VaultError as failure:
                yield place.name, str(failure)
            else:
                yield place.name, ""

    def _set_aside(self, identity: str, why: Exception) -> VaultError:
        place = self._place(identity)
        aside = _aside(self.folder / "damaged" / identity)
        aside.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            place.rename(aside)
        return VaultError(
            f"snapshot {identity} is damaged ({why}) and set aside", where=str(aside), cure="pre-warm again"
        )

    # --- keep and remove

    def pin(self, name: str, identity: str | None) -> None:
        """Keep a snapshot for `name`, a run say; with None, let go of what it had pinned."""
        path = self.folder / "pins" / name
        if identity is None:
            path.unlink(missing_ok=True)
            return
        self.load(identity)
        with whole_file(path) as draft:
            draft.write_text(identity)

    def pins(self) -> dict[str, list[str]]:
        """Names by the snapshot that they keep."""
        found: dict[str, list[str]] = {}
        for path in sorted((self.folder / "pins").glob("*")) if (self.folder / "pins").is_dir() else []:
            if not path.name.startswith("."):
                found.setdefault(path.read_text().strip(), []).append(path.name)
        return found

    def remove(self, identity: str) -> None:
        """Delete a snapshot: the only thing that does.

        Raises:
            VaultError: there is none of that id.
            BusyError: it is pinned, or a process reads it.
        """
        self.load(identity)
        pinned = self.pins().get(identity)
        if pinned:
            cure = f"let go of it first: ./inv cache.pin {identity} --for-run {pinned[0]} --release"
            raise BusyError(f"snapshot {identity} is pinned by {pinned[0]}", where=str(self.folder), cure=cure)
        place = self._place(identity)
        readers = holders(place)
        if readers:
            raise BusyError(f"process {readers[0]} reads snapshot {identity}", where=str(place), cure="wait for it")
        gone = self.folder / f".removed-{secrets.token_hex(8)}"
        place.rename(gone)
        shutil.rmtree(gone)

    def _place(self, identity: str) -> Path:
        if not identity or "/" in identity or identity.startswith("."):
            raise UsageError(f"{identity!r} is not the id of a snapshot", cure="./inv cache.list shows them")
        return self.folder / "snapshots" / identity


def differing(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """The ingredients in which two keys differ, as `name: a's -> b's`."""
    names = sorted(a.keys() | b.keys())
    return [f"{name}: {a.get(name, 'none')} -> {b.get(name, 'none')}" for name in names if a.get(name) != b.get(name)]


def _identity(key: Mapping[str, str], parcels: tuple[Parcel, ...]) -> str:
    files = [[file.path, file.size, file.mode, file.sha256] for parcel in parcels for file in parcel.files]
    return hashlib.sha256(json.dumps([dict(key), files], sort_keys=True).encode()).hexdigest()[:16]


def _aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.aside-{number}")).exists():
        number += 1
    return aside
