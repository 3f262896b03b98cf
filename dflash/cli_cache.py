"""What the verbs cache.* do, with the vault of this machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.cli import print_json, root_of
from dflash.errors import UsageError

if TYPE_CHECKING:
    from dflash.compilation.vault import Vault


def vault_of(root: str) -> Vault:
    """The vault below a root, or the one that DFLASH_VAULT names."""
    from dflash.compilation.vault import Vault
    from dflash.pipeline.steps import vault_folder

    return Vault(vault_folder(root_of(root)))


def listed(*, root: str, as_json: bool) -> None:
    """The snapshots, oldest first."""
    vault = vault_of(root)
    snapshots, pins = vault.listed(), vault.pins()
    if as_json:
        print_json({"snapshots": [{**each.shown(), "pinned": pins.get(each.id, [])} for each in snapshots]})
        return
    for each in snapshots:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.saved))
        pinned = f"  pinned by {', '.join(pins[each.id])}" if each.id in pins else ""
        size = f"{each.graphs} graphs, {each.files:,} files, {each.bytes / 1e6:.1f} MB"
        print(f"{each.id}  {when}  {size}  {each.key.get('torch', '').partition(' ')[0]}{pinned}")


def show(*, snapshot: str, root: str, as_json: bool) -> None:
    """What a snapshot is for."""
    found = vault_of(root).load(snapshot)
    if as_json:
        print_json(found.shown())
        return
    for title, fields in (("valid for", found.key), ("recorded", found.recorded)):
        print(f"{title}:")
        for name, value in fields.items():
            print(f"  {name:10} {value}")
    print(f"{found.graphs} graphs, {found.files:,} files, {found.bytes / 1e6:.1f} MB")


def verify(*, root: str, as_json: bool) -> None:
    """Hash every file of every snapshot; exits with 8 if one was damaged, which then is set aside."""
    found = list(vault_of(root).verify())
    if as_json:
        print_json({"snapshots": [{"id": name, "wrong": wrong} for name, wrong in found]})
    else:
        for name, wrong in found:
            print(f"{name}  {wrong or 'ok'}")
        print(f"{len(found)} snapshots, {sum(bool(wrong) for _, wrong in found)} damaged")
    sys.exit(8 if any(wrong for _, wrong in found) else 0)


def restore(*, snapshot: str, to: str, root: str) -> None:
    """Put a snapshot's files at a folder."""
    found = vault_of(root).restore(snapshot, Path(to))
    print(f"{to}: {found.files:,} files, {found.bytes / 1e6:.1f} MB")


def pin(*, snapshot: str, run: str, release: bool, root: str) -> None:
    """Keep a snapshot for a run, or let go of what the run had pinned."""
    if not run:
        raise UsageError("a pin needs a name", where="--for-run", cure="give the run's id")
    vault_of(root).pin(run, None if release else snapshot)
    print(f"{run} {'no longer keeps' if release else 'keeps'} {snapshot}")


def remove(*, snapshot: str, root: str) -> None:
    """Delete a snapshot."""
    vault_of(root).remove(snapshot)
    print(f"{snapshot}: removed")
