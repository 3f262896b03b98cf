"""What the verbs cache.* ask of a vault, answered as plain values: called for the vault of this machine, and run as a
program for that of another one, with an environment's Python there.

    PYTHON -P -m dflash.compilation.far ROLE ROOT HOST [WORD...]

prints one JSON document: the answer on standard output, or on standard error what went wrong and its cure.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dflash.compilation import travel
from dflash.compilation.cachekey import key_file, read_key
from dflash.compilation.holders import holders
from dflash.compilation.ingredients import recorded
from dflash.compilation.parcels import check
from dflash.compilation.vault import Vault, vault_folder
from dflash.errors import BusyError, DFlashError, UsageError, as_answer, storage_error

CACHE_NAMES = frozenset({"fxgraph", "aotautograd", "triton", "locks"})
"""Of folders in a compile cache: one of them is in every one that something was compiled into."""


def listed(vault: Vault) -> list[dict[str, Any]]:
    """The snapshots, oldest first, and who keeps them."""
    pins = vault.pins()
    return [{**each.shown(), "pinned": pins.get(each.id, [])} for each in vault.listed()]


def show(vault: Vault, identity: str) -> dict[str, Any]:
    """What a snapshot is for."""
    return vault.load(identity).shown()


def verify(vault: Vault) -> list[dict[str, Any]]:
    """What is wrong with each snapshot."""
    return [each.__dict__ for each in vault.verify()]


def save(vault: Vault, folder: str) -> dict[str, Any]:
    """Keep a live cache, by the key that pre-warm wrote beside it.

    Raises:
        UsageError: there is no such folder, or its key is unknown.
        BusyError: a process uses it, and may be half-way.
    """
    cache = _path(folder)
    if not cache.is_dir():
        raise UsageError("there is no such folder", where=str(cache), cure="give the folder of a compile cache")
    known = read_key(cache)
    users = holders(cache, readers=False)
    if users:
        what = f"process {users[0]} uses this compile cache, and may be half-way"
        raise BusyError(what, where=str(cache), cure="save it when that has ended")
    return vault.save(cache, known.key, recorded(cache), known.graphs).shown()


def restore(vault: Vault, identity: str, folder: str) -> dict[str, Any]:
    """Put a snapshot's files at a folder; `aside` is where what was there is now, if anything was.

    Raises:
        UsageError: what is there is no compile cache, but a project, say, which nobody wants moved away.
    """
    cache = _path(folder)
    if not _is_cache(cache):
        what = "what is there is no compile cache, so it is not moved aside"
        raise UsageError(what, where=str(cache), cure="name another folder, or move it away yourself")
    snapshot, former = vault.restore(identity, cache)
    return {**snapshot.shown(), "aside": str(former or "")}


def _is_cache(folder: Path) -> bool:
    """Or nothing, or an empty folder, which may become one."""
    try:
        names = set(os.listdir(folder))
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    return not names or bool(names & CACHE_NAMES) or key_file(folder).exists()


def pin(vault: Vault, name: str, identity: str) -> None:
    """Keep a snapshot for a name."""
    vault.pin(name, identity)


def release(vault: Vault, name: str, identity: str) -> None:
    """Let go of a snapshot that a name keeps."""
    vault.release(name, identity)


def remove(vault: Vault, identity: str) -> None:
    """Delete a snapshot."""
    vault.remove(identity)


def offer(vault: Vault, identity: str) -> dict[str, str]:
    """Where a snapshot is, every byte of it checked, and its mark."""
    with vault.reading(identity) as (snapshot, archive):
        check(archive, snapshot.parcels)
        return {"folder": str(vault.place(identity).resolve()), "mark": travel.mark_of(vault.place(identity))}


def expect(vault: Vault, identity: str, mark: str) -> str:
    """Where a snapshot is to be put; nothing when it is there already."""
    place = travel.expected(vault, identity, mark)
    return str(place.resolve()) if place else ""


def arrive(vault: Vault, identity: str, mark: str) -> dict[str, Any]:
    """Keep what has come."""
    return travel.arrived(vault, identity, mark).shown()


def forget(vault: Vault, identity: str, mark: str) -> None:
    """Give up what has come."""
    travel.forget(vault, identity, mark)


ROLES: dict[str, Callable[..., Any]] = {
    "list": listed,
    "show": show,
    "verify": verify,
    "save": save,
    "restore": restore,
    "pin": pin,
    "release": release,
    "remove": remove,
    "offer": offer,
    "expect": expect,
    "arrive": arrive,
    "forget": forget,
}


def answer(vault: Vault, role: str, *words: str) -> Any:
    """What `role` gives for `words`. Raises DFlashError."""
    try:
        return ROLES[role](vault, *words)
    except OSError as failure:
        raise storage_error(failure, failure.filename or vault.folder) from failure


def main() -> int:
    """The program at the far end."""
    role, root, host, *words = sys.argv[1:]
    try:
        found = answer(Vault(vault_folder(_path(root)), at=f" --host {host}"), role, *words)
    except Exception as failure:
        if not isinstance(failure, DFlashError):
            traceback.print_exception(failure)
        sys.stderr.write(f"{as_answer(failure)}\n")
        return getattr(failure, "exit_code", 1)
    print(json.dumps(found))
    return 0


def _path(text: str) -> Path:
    return Path(os.path.expanduser(text)).absolute()


if __name__ == "__main__":
    sys.exit(main())
