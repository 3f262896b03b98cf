"""Puts the files of a snapshot at a folder: all of them or none, and nothing that was there is lost."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from dflash.atomic import aside
from dflash.compilation import locks
from dflash.compilation.holders import holders
from dflash.compilation.parcels import Parcel, unpack
from dflash.errors import BusyError


def put_at(cache: Path, archive: Path, parcels: Sequence[Parcel]) -> Path | None:
    """Unpack beside `cache`, then move it there; what is there is moved aside, and where to is returned. Others who put
    something there wait.

    Raises:
        BusyError: a process uses the folder.
        DamagedParcel: of the archive; or OSError. What was there is there still.
    """
    with locks.in_turn(cache.parent):
        users = holders(cache)
        if users:
            # Also when somebody deleted the folder under it: it may be writing new files there, and needs none of ours.
            cure = "wait for it, or name another folder"
            raise BusyError(f"process {users[0]} uses this compile cache", where=str(cache), cure=cure)
        for name in os.listdir(cache.parent):  # of some that were killed: in turn, so none is at work
            if name.startswith(f".{cache.name}.") and name.endswith(".restoring"):
                shutil.rmtree(cache.with_name(name), ignore_errors=True)
        draft = cache.with_name(f".{cache.name}.{secrets.token_hex(4)}.restoring")
        try:
            draft.mkdir()
            unpack(archive, parcels, draft)
            return _exchange(draft, cache)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _exchange(draft: Path, cache: Path) -> Path | None:
    if not cache.exists():
        draft.rename(cache)
        return None
    former = aside(cache)
    cache.rename(former)
    try:
        draft.rename(cache)
    except OSError:
        former.rename(cache)
        raise
    with contextlib.suppress(OSError):  # it was empty: nothing to keep
        former.rmdir()
        return None
    return former
