"""A snapshot's way from one vault to another: what each end does before and after the bytes travel.

    VAULT/.arriving-ID-MARK/    what has come so far. MARK is a hash of the manifest that is sent, so that only the very
                                same is gone on with. It is not used: only what is whole is signed and moved on.

Whoever sends checks his own signature first, and the connection says who that is: the receiving end hashes every file
and then signs with its own key. The id stays, and so does the key; the number is the receiving vault's.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from pathlib import Path

from dflash.compilation.drafts import draft_in
from dflash.compilation.parcels import DamagedParcel, check
from dflash.compilation.snapshots import (
    ARCHIVE,
    MANIFEST,
    DamagedSnapshot,
    OtherVersion,
    Snapshot,
    VaultError,
    parse_manifest,
)
from dflash.compilation.vault import Vault
from dflash.errors import UsageError, storage_error


def mark_of(folder: Path) -> str:
    """The mark of a snapshot's folder. Raises OSError."""
    return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()[:16]


def expected(vault: Vault, identity: str, mark: str) -> Path | None:
    """Where a snapshot is to arrive; None when it is here already, whole.

    Raises:
        VaultError: one of that id is here, and is not this user's to use.
    """
    if vault.whole(identity):
        return None
    return _arriving(vault, identity, mark)


def arrived(vault: Vault, identity: str, mark: str) -> Snapshot:
    """Check what has come, sign it and keep it.

    Raises:
        VaultError: it is not what was sent; it is gone now, so that it can be sent again.
        StorageError: the vault can not be written.
    """
    folder = _arriving(vault, identity, mark)
    try:
        if any(path.is_symlink() for path in folder.iterdir()):  # no snapshot has one
            raise DamagedSnapshot("there is a link in it")
        snapshot = parse_manifest((folder / MANIFEST).read_bytes())
        if snapshot.id != identity or not stat.S_ISREG(os.lstat(folder / ARCHIVE).st_mode):
            raise DamagedSnapshot("it is not the one that was asked for")
        check(folder / ARCHIVE, snapshot.parcels)
        with draft_in(vault.folder) as draft:
            (folder / ARCHIVE).rename(draft / ARCHIVE)
            kept = vault.keep(draft, snapshot)
    except (DamagedParcel, DamagedSnapshot, OtherVersion) as failure:
        forget(vault, identity, mark)
        what = f"snapshot {identity} is not here as it was sent ({failure.what})"
        raise VaultError(what, where=str(vault.folder), cure="send it again") from failure
    except FileNotFoundError as failure:
        there = vault.whole(identity)  # another transfer of the same was quicker
        if there is None:
            what = f"snapshot {identity} is not here whole"
            raise VaultError(what, where=str(vault.folder), cure="send it again") from failure
        kept = there
    except OSError as failure:
        raise storage_error(failure, failure.filename or folder) from failure
    forget(vault, identity, mark)
    return kept


def forget(vault: Vault, identity: str, mark: str) -> None:
    """Give up what has come so far."""
    shutil.rmtree(_arriving(vault, identity, mark), ignore_errors=True)


def _arriving(vault: Vault, identity: str, mark: str) -> Path:
    if not re.fullmatch("[0-9a-f]{16}", mark):
        raise UsageError(f"{mark!r} is no mark of a snapshot")
    return vault.folder / f".arriving-{vault.place(identity).name}-{mark}"
