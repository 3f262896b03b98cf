"""The Docker engine of a host, as a socket here: each connection to it is a relay at the far end of the chain."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from dflash.errors import DFlashError
from dflash.hosts.connection import Connection
from dflash.hosts.program import archive, program
from dflash.images.failures import EngineMissing


@contextlib.contextmanager
def forwarded(connection: Connection) -> Iterator[Path]:
    """A Unix socket, readable by us alone, that is the engine's of the host at the end of `connection`.

    Raises:
        EngineMissing: there is none.
    """
    relay = archive("dflash.images.relay", [])
    there = connection.execute(program("python3", relay))  # no input: it connects, and ends
    if there.code:
        said = there.stderr.decode(errors="replace").strip().splitlines() or ["it ended"]
        cure = "start Docker there, or let the user of the chain use it"
        raise EngineMissing(f"no Docker engine answers: {said[-1]}", where=connection.layer, cure=cure)
    with tempfile.TemporaryDirectory(prefix="dflash-engine-") as folder, contextlib.ExitStack() as last:
        place = Path(folder) / "docker.sock"
        listener = last.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(str(place))
        listener.listen(16)
        threads: list[threading.Thread] = []

        def accept() -> None:
            with contextlib.suppress(OSError):  # closed: nobody comes any more
                while True:
                    peer, _ = listener.accept()
                    one = threading.Thread(target=_relay, args=(connection, relay, peer), daemon=True)
                    threads.append(one)
                    one.start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield place
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(10)
            for one in threads:
                one.join(10)


def _relay(connection: Connection, relay: bytes, peer: socket.socket) -> None:
    """One connection of a client to the engine there, until either has had enough."""
    with peer:
        stdin = cast("IO[bytes]", peer.makefile("rb", buffering=0))
        with stdin, contextlib.suppress(OSError, DFlashError):
            connection.execute(program("python3", relay), stdin=stdin, stdout=peer.sendall)
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
