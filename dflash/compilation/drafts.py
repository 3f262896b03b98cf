"""Folders in a vault that are not snapshots yet, or not any more; and who collects them when their process was killed.

VAULT/.saving-*      a snapshot that is being made
VAULT/.removed-*     one that is being deleted
VAULT/.arriving-*    what has come so far of one from another host (travel.py)
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from dflash.compilation import locks

WEEK_S = 7 * 86400.0


@contextlib.contextmanager
def at_work(vault: Path) -> Iterator[None]:
    """Make or remove something in `vault`. Whoever is the only one at work collects what killed ones left. Raises
    OSError."""
    vault.mkdir(parents=True, exist_ok=True)
    with locks.among(vault / ".lock", lambda: _collect(vault)):
        yield


@contextlib.contextmanager
def draft_in(vault: Path) -> Iterator[Path]:
    """A new folder in `vault`, to make a snapshot in; gone afterwards, if it is there still. Raises OSError."""
    with at_work(vault):
        draft = vault / f".saving-{secrets.token_hex(8)}"
        draft.mkdir(mode=0o755)
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _collect(vault: Path) -> None:
    for rest in vault.glob(".*-*"):
        # Half of a transfer is gone on with: that stays for a week.
        late = rest.name.startswith(".arriving-") and time.time() - _touched(rest) > WEEK_S
        if late or rest.name.startswith((".saving-", ".removed-")):
            shutil.rmtree(rest, ignore_errors=True)


def _touched(folder: Path) -> float:
    times = []
    with contextlib.suppress(OSError):  # somebody gives it up, just now
        times = [folder.stat().st_mtime]
        times += [path.stat().st_mtime for path in folder.rglob("*")]
    return max(times, default=time.time())
