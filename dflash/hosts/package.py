"""This project's own package at a host, or all of its source, for programs that run there with an environment's Python.

place = send_package(connection, host)
connection.run([python, "-m", "dflash.training.worker"], env={"PYTHONPATH": place})
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import dflash
from dflash.errors import storage_error
from dflash.hosts import unpacking
from dflash.hosts.connection import Connection
from dflash.hosts.files import TransferFailed
from dflash.hosts.inventory import DEFAULT_ROOT, Host

PACKAGE = Path(dflash.__file__).resolve().parent


def send_package(connection: Connection, host: Host, package: Path = PACKAGE) -> str:
    """Have `package`, as it is here now, below the root of `host`; the folder for PYTHONPATH there.

    It is there whole or not at all, and sent only when exactly this content is not there. Of a chain that never leaves
    this machine it is the package's own folder, and nothing is sent.

    Raises:
        StorageError: `package` can not be read.
        TransferFailed: it can not be written there.
        NoPython, LostConnection: the host.
    """
    if host.chain.is_local:
        return str(package.parent)
    try:
        content = unpacking.read_package(os.fspath(package))
    except OSError as failure:
        raise storage_error(failure, failure.filename or package) from failure
    return send_files(connection, host, content)


def send_files(connection: Connection, host: Host, content: bytes) -> str:
    """Have the files that `unpacking.packed` made `content` of below the root of `host`, otherwise as `send_package`;
    their folder there."""
    identity = unpacking.digest(content)
    return where(connection, host, identity) or _asked(connection, host, identity, zlib.compress(content))


def where(connection: Connection, host: Host, identity: str) -> str:
    """The folder of the files that were sent as `identity`; nothing where they are not there any more, or changed."""
    return _asked(connection, host, identity, b"")


def _asked(connection: Connection, host: Host, identity: str, packed: bytes) -> str:
    code = Path(unpacking.__file__).read_text(encoding="utf-8")
    words = ["python3", "-IS", "-c", code, host.root or DEFAULT_ROOT, identity]
    result = connection.run(words, stdin=packed)
    if result.code:
        said = result.stderr.decode(errors="replace").strip().splitlines()
        raise TransferFailed(said[-1] if said else f"it ended with {result.code}", layer=connection.layer)
    return os.fsdecode(result.stdout).rstrip("\n")
