"""The vault keeps compile caches: immutable snapshots, found by everything that decides whether they are valid.

    VAULT/snapshots/ID/manifest.json    what it is: key, files with their hashes, what was recorded beside
    VAULT/snapshots/ID/files.zst        the files (parcels.py)
    VAULT/snapshots/ID/signature        of manifest.json with the owner's key (signing.py)
    VAULT/pins/NAME                     the id of a snapshot that must stay
    VAULT/damaged/ID...                 what was found damaged: set aside, never used

ID is a hash of key and files, so saving the same cache twice is saving it once. A snapshot is made beside its place and
renamed, and nothing but `remove` deletes one. Entries of a compile cache are pickles: only what was signed with a key
that this user has is ever restored, and nothing is unpickled to be verified.

Folders, not torch's portable artifacts: those lack CPU kernels, are six times larger, and can't be checked by file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from dflash.atomic import aside, sync
from dflash.compilation import locks
from dflash.compilation.drafts import at_work, draft_in
from dflash.compilation.holders import holders
from dflash.compilation.judging import read_snapshot
from dflash.compilation.parcels import DamagedParcel, check, pack, wanted
from dflash.compilation.pins import Pins
from dflash.compilation.placing import put_at
from dflash.compilation.signing import Signer
from dflash.compilation.snapshots import (
    ARCHIVE,
    MANIFEST,
    SIGNATURE,
    DamagedSnapshot,
    ForeignSnapshot,
    OtherVersion,
    Snapshot,
    VaultError,
    Verdict,
    differing,
    identity_of,
    parse_manifest,
)
from dflash.errors import BusyError, UsageError, storage_error

__all__ = ["Snapshot", "Vault", "VaultError", "differing", "vault_folder"]
_ID = re.compile(r"[A-Za-z0-9_-]+")


def vault_folder(root: Path) -> Path:
    """Where compile caches are kept: below the root, or in the folder that DFLASH_VAULT names, which several share."""
    return Path(os.environ.get("DFLASH_VAULT") or root / "vault").expanduser()


class Vault:
    """A vault's folder, which several users and hosts may share."""

    def __init__(self, folder: Path, key_file: Path | None = None, at: str = "") -> None:
        """`key_file` holds the secret that snapshots are signed with (signing.py says which it is otherwise). `at` ends
        the commands that an error names as its cure: of another host's vault it is ` --host NAME`."""
        self.folder, self._at = folder, at
        self._signer, self._pins = Signer(key_file), Pins(folder / "pins")

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
        try:
            with draft_in(self.folder) as draft:
                parcels = tuple(pack(cache, names, draft / ARCHIVE))
                made = Snapshot(identity_of(key, parcels), dict(key), dict(recorded), graphs, time.time(), 0, parcels)
                return self.keep(draft, made)
        except OSError as failure:
            raise storage_error(failure, failure.filename or self.folder) from failure

    def keep(self, draft: Path, made: Snapshot) -> Snapshot:
        """Make a snapshot of `draft`, which has the archive: give it a number, sign it, move it to its place.

        Raises:
            VaultError: one of that id is there that is not this user's to use.
            OSError: the vault can not be written.
        """
        number = max((each.number for each in self.listed()), default=0) + 1
        made = Snapshot(made.id, made.key, made.recorded, made.graphs, made.saved, number, made.parcels)
        manifest = json.dumps(made.to_json(), sort_keys=True).encode()
        parse_manifest(manifest)
        (draft / MANIFEST).write_bytes(manifest)
        (draft / SIGNATURE).write_text(self._signer.sign(manifest))
        for name in (ARCHIVE, MANIFEST, SIGNATURE):
            path = draft / name
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o022)  # whatever the umask is: others must not write it
            sync(path)
        sync(draft)
        place = self.place(made.id)
        place.parent.mkdir(exist_ok=True)
        while True:
            try:
                draft.rename(place)
                sync(place.parent)
                return made
            except OSError as failure:
                if failure.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            there = self.whole(made.id)  # by us, or by another saver
            if there:
                return there

    def whole(self, identity: str) -> Snapshot | None:
        """A snapshot, every byte of it checked; None if there is none, or it was damaged and is set aside now. Raises
        VaultError for one that this user may not use."""
        try:
            with self.reading(identity) as (snapshot, archive):
                check(archive, snapshot.parcels)
                return snapshot
        except VaultError:
            if self.place(identity).exists():  # if it is damaged, it could not be set aside
                raise
            return None

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
        for identity in self._ids():
            with contextlib.suppress(VaultError):
                found.append(self.load(identity))
        return sorted(found, key=lambda each: each.number)

    def load(self, identity: str) -> Snapshot:
        """A snapshot by its id, its signature checked, its archive not.

        Raises:
            VaultError: there is none, or it is not this user's to use.
            DamagedSnapshot, ForeignSnapshot: its manifest is not the one that was signed, or not with this user's key.
        """
        return read_snapshot(self.place(identity), self._signer, self._at)

    # --- use

    @contextlib.contextmanager
    def reading(self, identity: str) -> Iterator[tuple[Snapshot, Path]]:
        """A snapshot and its archive, which nobody can remove meanwhile. If it is damaged, or the block raises
        DamagedParcel, it is set aside.

        Raises:
            VaultError: as `load`; DamagedSnapshot says where it is now.
        """
        try:
            snapshot = self.load(identity)
        except DamagedSnapshot as failure:
            raise self._set_aside(identity, failure) from failure
        with contextlib.ExitStack() as stack:
            try:
                descriptor = stack.enter_context(locks.reading(self.place(identity) / ARCHIVE))
            except FileNotFoundError:
                raise self._taken(identity) from None
            except OSError as failure:
                what = f"snapshot {identity} can not be read ({failure.strerror})"
                raise VaultError(what, where=str(self.place(identity))) from failure
            try:
                # By its descriptor: another process may find the same damage, and set it aside under us.
                yield snapshot, Path(f"/proc/self/fd/{descriptor}")
            except DamagedParcel as failure:
                raise self._set_aside(identity, failure, os.fstat(descriptor)) from failure

    def restore(self, identity: str, cache: Path) -> tuple[Snapshot, Path | None]:
        """Put exactly the bytes of a snapshot at `cache`. What is there is moved aside, unless a process uses it: the
        snapshot, and where that is now, if anything was there.

        Raises:
            BusyError: a process uses the folder.
            VaultError: the snapshot is damaged, and set aside now; or not this user's to restore.
            StorageError: `cache` can not be written; what was there is there still.
        """
        with self.reading(identity) as (snapshot, archive):
            try:
                return snapshot, put_at(cache, archive, snapshot.parcels)
            except OSError as failure:
                raise storage_error(failure, failure.filename or cache) from failure

    def verify(self) -> Iterator[Verdict]:
        """Hash every file of every snapshot. Damaged ones are set aside, others' are left alone, and
        so is what is no snapshot at all."""
        for identity in self._names():
            if not _ID.fullmatch(identity):
                yield Verdict(identity, "unusable", "is no snapshot: move it away")
                continue
            try:
                with self.reading(identity) as (snapshot, archive):
                    check(archive, snapshot.parcels)
                yield Verdict(identity, "ok")
            except DamagedSnapshot as failure:
                yield Verdict(identity, "damaged", str(failure))
            except ForeignSnapshot as failure:
                yield Verdict(identity, "foreign", str(failure))
            except OtherVersion as failure:
                yield Verdict(identity, "other", str(failure))
            except (VaultError, OSError) as failure:
                if self.place(identity).exists():
                    yield Verdict(identity, "unusable", str(failure))

    def _set_aside(
        self, identity: str, why: DamagedParcel | VaultError, seen: os.stat_result | None = None
    ) -> DamagedSnapshot:
        """Move a snapshot away, if it is still the one that was `seen`, and say what became of it."""
        place, target = self.place(identity), aside(self.folder / "damaged" / identity)
        what, cure = f"snapshot {identity} is damaged ({why.what})", "pre-warm again"
        try:
            target.parent.mkdir(exist_ok=True)
            if seen is None or os.path.samestat((place / ARCHIVE).stat(), seen):
                place.rename(target)
                return DamagedSnapshot(f"{what} and set aside", where=str(target), cure=cure)
        except FileNotFoundError:  # another process found it, too
            pass
        except OSError as failure:
            return DamagedSnapshot(f"{what}; it can not be set aside ({failure.strerror})", where=str(place), cure=cure)
        return DamagedSnapshot(f"{what}, and another process took it away", where=str(self.folder), cure=cure)

    # --- keep and remove

    def pin(self, name: str, identity: str) -> None:
        """Keep a snapshot for `name`, a run say, and no other any more.

        Raises:
            UsageError: the name can not be one.
            VaultError: there is no such snapshot, or it is not this user's to use; or StorageError.
        """
        try:
            with self.reading(identity):  # so that nobody removes it meanwhile
                self._pins.keep(name, identity)
        except OSError as failure:
            raise storage_error(failure, failure.filename or self.folder) from failure

    def release(self, name: str, identity: str) -> None:
        """Let go of a snapshot that `name` keeps, whether it is there or not.

        Raises:
            UsageError: `name` keeps another one, or none; or StorageError.
        """
        try:
            self._pins.release(name, identity)
        except OSError as failure:
            raise storage_error(failure, failure.filename or self.folder) from failure

    def pins(self) -> dict[str, list[str]]:
        """Names by the snapshot that they keep."""
        return self._pins.by_snapshot()

    def remove(self, identity: str) -> None:
        """Delete a snapshot: the only thing that does.

        Raises:
            VaultError: there is none of that id.
            BusyError: it is pinned, or a process reads it.
            StorageError: it can not be deleted, or not all of it; what is left of it is not used.
        """
        with contextlib.suppress(OtherVersion):
            self.load(identity)
        place, gone = self.place(identity), self.folder / f".removed-{secrets.token_hex(8)}"
        try:
            with at_work(self.folder):
                with locks.alone(place / ARCHIVE):  # whoever pins it reads it meanwhile
                    pinned, readers = self.pins().get(identity), holders(place)
                    if pinned:
                        cure = (
                            f"let go of it first: ./inv cache.pin {identity} --for-run {pinned[0]} --release{self._at}"
                        )
                        what = f"snapshot {identity} is pinned by {pinned[0]}"
                        raise BusyError(what, where=str(self.folder), cure=cure)
                    if readers:
                        what = f"process {readers[0]} reads snapshot {identity}"
                        raise BusyError(what, where=str(place), cure="wait for it")
                    place.rename(gone)
                shutil.rmtree(gone)
        except BlockingIOError:
            what = f"somebody reads snapshot {identity}"
            raise BusyError(what, where=str(place), cure="wait for it") from None
        except FileNotFoundError:
            raise self._taken(identity) from None
        except OSError as failure:
            raise storage_error(failure, failure.filename or place) from failure

    def _taken(self, identity: str) -> VaultError:
        return VaultError(f"snapshot {identity} was taken away just now", where=str(self.folder))

    def place(self, identity: str) -> Path:
        """The folder of a snapshot, whether it is there or not. Raises UsageError for what is no id."""
        if not _ID.fullmatch(identity):
            cure = f"./inv cache.list{self._at} shows them"
            raise UsageError(f"{identity!r} is not the id of a snapshot", cure=cure)
        return self.folder / "snapshots" / identity

    def _ids(self) -> list[str]:
        return [name for name in self._names() if _ID.fullmatch(name)]

    def _names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.folder / "snapshots") if not name.startswith("."))
        return []
