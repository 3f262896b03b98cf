"""What the verbs cache.* do, with the vault of this machine or that of a host."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dflash.cli import HOME, print_json, refuse_root, root_of
from dflash.errors import UsageError

if TYPE_CHECKING:
    from dflash.compilation.vault import Vault
    from dflash.hosts.inventory import Host

STATES = {
    "damaged": "damaged",
    "foreign": "signed with another key",
    "other": "of another version",
    "unusable": "that can not be used",
}


def vault_of(root: str) -> Vault:
    """The vault below a root of this machine, or the one that DFLASH_VAULT names."""
    from dflash.compilation.vault import Vault, vault_folder

    return Vault(vault_folder(root_of(root)))


def ask(where: tuple[str, str, str], role: str, *words: str) -> Any:
    """What a role of `dflash.compilation.far` gives. `where` is a host, an environment of it, and a root of this
    machine: with no host it is this machine's vault, and nothing is connected."""
    host, environment, root = where
    each = _host(host)
    if each is None or each.chain.is_local:
        from dflash.compilation.far import answer

        return answer(vault_of(root or (each and each.root) or ""), role, *words)
    refuse_root(root)
    from dflash.compilation.remote import vault_at

    with vault_at(each, environment) as there:
        return there.ask(role, *words)


def _host(text: str) -> Host | None:
    from dflash.hosts.inventory import find_host

    if "," in text:
        raise UsageError("this verb takes one host", where=f"--host {text}", cure="name one")
    return find_host(text, HOME / "hosts.yaml") if text else None


def listed(*, where: tuple[str, str, str], as_json: bool) -> None:
    """The snapshots, oldest first."""
    snapshots = ask(where, "list")
    if as_json:
        print_json({"snapshots": snapshots})
        return
    for each in snapshots:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each["saved"]))
        pinned = f"  pinned by {', '.join(each['pinned'])}" if each["pinned"] else ""
        torch = each["key"].get("torch", "").partition(" ")[0]
        print(f"{each['id']}  {when}  {each['graphs']} graphs, {_size(each)}  {torch}{pinned}")


def show(*, snapshot: str, where: tuple[str, str, str], as_json: bool) -> None:
    """What a snapshot is for."""
    found = ask(where, "show", snapshot)
    if as_json:
        print_json(found)
        return
    for title in ("key", "recorded"):
        print(f"{'valid for' if title == 'key' else title}:")
        for name, value in found[title].items():
            print(f"  {name:10} {value}")
    print(f"{found['graphs']} graphs, {_size(found)}")


def verify(*, where: tuple[str, str, str], as_json: bool) -> None:
    """Hash every file of every snapshot; exits with 8 if one was damaged, which then is set aside, or if one that is
    signed with this user's key can not be used."""
    found = ask(where, "verify")
    if as_json:
        print_json({"snapshots": found})
    else:
        for each in found:
            print(f"{each['id']}  {each['wrong'] or 'ok'}")
        counts = {word: sum(each["state"] == state for each in found) for state, word in STATES.items()}
        others = [f"{count} {word}" for word, count in counts.items() if count or word == "damaged"]
        print(f"{len(found)} snapshots, {', '.join(others)}")
    sys.exit(8 if any(each["state"] in ("damaged", "unusable") for each in found) else 0)


def save(*, folder: str, where: tuple[str, str, str], as_json: bool) -> None:
    """Keep a live cache folder."""
    made = ask(where, "save", folder)
    if as_json:
        print_json(made)
    else:
        print(f"{made['id']}: {made['graphs']} graphs, {_size(made)}")


def restore(*, snapshot: str, to: str, where: tuple[str, str, str]) -> None:
    """Put a snapshot's files at a folder."""
    found = ask(where, "restore", snapshot, to)
    print(f"{to}: {_size(found)}")
    if found["aside"]:
        print(f"moved aside: {found['aside']}")


def pin(*, snapshot: str, run: str, release: bool, where: tuple[str, str, str]) -> None:
    """Keep a snapshot for a run, or let go of one that it keeps."""
    if not run:
        raise UsageError("a pin needs a name", where="--for-run", cure="give the run's id")
    ask(where, "release" if release else "pin", run, snapshot)
    print(f"{run} {'no longer keeps' if release else 'keeps'} {snapshot}")


def remove(*, snapshot: str, where: tuple[str, str, str]) -> None:
    """Delete a snapshot."""
    ask(where, "remove", snapshot)
    print(f"{snapshot}: removed")


def put(*, snapshot: str, host: str, environment: str, root: str) -> None:
    """Bring a snapshot from the vault here to a host's."""
    brought = _travel(host, environment, lambda there: there.put(vault_of(root), snapshot))
    print(f"{snapshot}: {'sent to' if brought else 'is there already,'} {host}")


def get(*, snapshot: str, host: str, environment: str, root: str) -> None:
    """Bring a snapshot from a host's vault here."""
    brought = _travel(host, environment, lambda there: there.get(vault_of(root), snapshot))
    print(f"{snapshot}: {f'brought from {host}' if brought else 'is here already'}")


def _travel(host: str, environment: str, way: Callable[[Any], bool]) -> bool:
    each = _host(host)
    if each is None or each.chain.is_local:
        raise UsageError("that is this machine", where=f"--host {host}", cure="name another")
    from dflash.compilation.remote import vault_at

    with vault_at(each, environment) as there:
        return way(there)


def _size(each: dict[str, Any]) -> str:
    return f"{each['files']:,} files, {each['bytes'] / 1e6:.1f} MB"
