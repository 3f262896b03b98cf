"""Runs at the far end of a chain: copies its standard input to a Unix socket, and what comes back to standard output.

Sent along as one file; standard library, Python 3.8+.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading


def main() -> int:
    """The socket is that of DOCKER_HOST, or the usual one. Exit status 3: nobody listens there."""
    place = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not place.startswith("unix://"):
        sys.stderr.write("DOCKER_HOST is not a Unix socket there: " + place + "\n")
        return 3
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        try:
            peer.connect(place[len("unix://") :])
        except OSError as failure:
            sys.stderr.write(place + ": " + (failure.strerror or str(failure)) + "\n")
            return 3
        threading.Thread(target=_send, args=(peer,), daemon=True).start()
        data = peer.recv(1 << 16)
        while data:
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]
            data = peer.recv(1 << 16)
    return 0


def _send(peer: socket.socket) -> None:
    data = os.read(0, 1 << 16)
    while data:
        peer.sendall(data)
        data = os.read(0, 1 << 16)
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_WR)
