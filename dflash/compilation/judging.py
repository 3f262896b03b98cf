"""Reads a snapshot's folder, and judges whether this user may use it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dflash.compilation.signing import VARIABLE, Signer
from dflash.compilation.snapshots import (
    ARCHIVE,
    MANIFEST,
    SIGNATURE,
    DamagedSnapshot,
    ForeignSnapshot,
    OtherVersion,
    Snapshot,
    VaultError,
    parse_manifest,
)


def read_snapshot(place: Path, signer: Signer, at: str = "") -> Snapshot:
    """The snapshot at `place`, everything checked but its archive's content.

    Raises:
        VaultError: there is none, or it is not this user's to use; OtherVersion: nor this version's.
        DamagedSnapshot, ForeignSnapshot: its manifest is not the one that was signed, or not with this user's key.
    """
    identity = place.name
    try:
        manifest = (place / MANIFEST).read_bytes()
        signature = (place / SIGNATURE).read_bytes().decode(errors="replace")
        status = {path: path.stat() for path in (place, place / MANIFEST, place / ARCHIVE)}
    except FileNotFoundError as failure:
        if place.is_dir():
            raise DamagedSnapshot(f"{Path(failure.filename).name} is gone", where=str(place)) from None
        cure = f"./inv cache.list{at} shows them"
        raise VaultError(f"there is no snapshot {identity}", where=str(place.parents[1]), cure=cure) from None
    except OSError as failure:
        raise VaultError(f"snapshot {identity} can not be read ({failure.strerror})", where=str(place)) from failure
    judged = signer.judge(manifest, signature)
    if judged == "changed":
        raise DamagedSnapshot("its manifest was changed after it was signed", where=str(place))
    if judged == "foreign":
        cure = f"it was signed with another key than {signer.key_file}; to share one, set {VARIABLE}"
        raise ForeignSnapshot(f"snapshot {identity} is not signed with your key", where=str(place), cure=cure)
    for path, found in status.items():
        _owned(path, found, signer)
    try:
        made = parse_manifest(manifest)
    except OtherVersion as failure:
        raise OtherVersion(failure.what, where=str(place), cure=failure.cure) from None
    except DamagedSnapshot as failure:
        # What was signed is what is here: no damage, whatever it is.
        raise VaultError(failure.what, where=str(place), cure="pre-warm again") from failure
    if made.id != identity:
        raise DamagedSnapshot(f"snapshot {identity} is not what its name says", where=str(place))
    return made


def _owned(path: Path, status: os.stat_result, signer: Signer) -> None:
    """The owner is this user, or root. Where users share a key, on purpose, it may be any of them: the signature says
    that one of them wrote the manifest, and every byte that is restored is hashed against that in memory, so that
    whoever owns the file can spoil it, and do no more. (On NFS, root's files often belong to nobody.)"""
    cure = "a cache holds code: make sure who wrote it"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise VaultError("others than its owner can write it", where=str(path), cure=cure)
    if status.st_uid not in (os.geteuid(), 0) and not signer.shared:
        what = f"user {status.st_uid} owns it, and your key is not one that you share by {VARIABLE}"
        raise VaultError(what, where=str(path), cure=cure)
