"""The vault of a host, seen from here: asked through a program that runs there, and snapshots that travel."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from dflash.compilation import travel
from dflash.compilation.parcels import check
from dflash.compilation.snapshots import VaultError
from dflash.compilation.vault import Vault
from dflash.environments.programs import Errors, HostPrograms
from dflash.errors import BusyError, DFlashError, StorageError, UsageError, storage_error
from dflash.hosts import files, transfer
from dflash.hosts.connection import Connection
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach

_ERRORS: Errors = {2: UsageError, 5: StorageError, 6: BusyError, 8: VaultError}


class HostVault:
    """The vault below the root of one host, over an open connection."""

    def __init__(self, connection: Connection, host: Host, environment: str = "", *, python: str = "") -> None:
        """It is asked with the Python of `environment`, or else of the only one in use there; or else with `python`.

        Raises:
            UsageError: no environment is in use there, or several are.
            TransferFailed, LostConnection: the host.
        """
        self._connection, self._programs = connection, HostPrograms(connection, host, environment, python=python)

    def ask(self, role: str, *words: str) -> Any:
        """What a role of far.py gives there.

        Raises:
            UsageError, StorageError, BusyError, VaultError: as there, with the host's layer before it.
            EnvironmentMismatch: the environment there can not run it.
        """
        programs = self._programs
        given = ("dflash.compilation.far", role, programs.root, programs.host.name, *words)
        return json.loads(programs.run(*given, errors=_ERRORS))

    def put(self, vault: Vault, identity: str, progress: files.Told = transfer.unseen) -> bool:
        """Bring a snapshot of the vault here to the one there; False when it is there already.

        One that broke off is gone on with the next time, and nothing of it is used until it is whole.

        Raises:
            VaultError: it is not in `vault`, or damaged; or one of that id is there, and not that user's to use.
            TransferFailed: it can not be written there; what came of it is gone. LostConnection: it stays.
        """
        with vault.reading(identity) as (snapshot, archive):
            check(archive, snapshot.parcels)
            folder = vault.place(identity)
            mark = travel.mark_of(folder)
            place = self.ask("expect", identity, mark)
            if not place:
                return False
            try:
                files.put(self._connection, folder, place, progress)
            except files.TransferFailed:
                with contextlib.suppress(DFlashError):  # a full disk: half a snapshot would keep it full
                    self.ask("forget", identity, mark)
                raise
            self.ask("arrive", identity, mark)
            return True

    def get(self, vault: Vault, identity: str, progress: files.Told = transfer.unseen) -> bool:
        """Bring a snapshot from there to the vault here; otherwise as `put`.

        Raises:
            StorageError: it can not be written here; what came of it is gone.
        """
        if vault.whole(identity):
            return False
        offered = self.ask("offer", identity)
        mark = str(offered["mark"])
        place = travel.expected(vault, identity, mark)
        if place is None:  # since then
            return False
        try:
            vault.folder.mkdir(parents=True, exist_ok=True)
            files.get(self._connection, str(offered["folder"]), place, progress)
        except (StorageError, OSError) as failure:
            travel.forget(vault, identity, mark)
            raise (storage_error(failure, place) if isinstance(failure, OSError) else failure) from failure
        travel.arrived(vault, identity, mark)
        return True


@contextlib.contextmanager
def vault_at(host: Host, environment: str = "") -> Iterator[HostVault]:
    """The vault of a host, over a connection that ends with the block."""
    with reach(host.chain) as connection:
        yield HostVault(connection, host, environment)
