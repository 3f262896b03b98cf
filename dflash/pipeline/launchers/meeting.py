"""Where the hosts of a training meet: an address of the first that all others reach, tried before anything starts.

torchrun would wait for minutes for a host that can not come, and not say which.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dflash.errors import UsageError
from dflash.hosts.connection import Connection
from dflash.hosts.failures import HostError, Unreachable

PATIENCE_S = 5.0

# Runs there as `python3 -c`, with the standard library alone.
_ADDRESSES = """
import fcntl, json, socket, struct

def address(name):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            packed = fcntl.ioctl(asked, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
        except OSError:
            return None
    return socket.inet_ntoa(packed[20:24])

found = {address(name): name for _, name in socket.if_nameindex()}
"""
_ALL = (
    _ADDRESSES
    + """
found.pop(None, None)
print(json.dumps(sorted(found, key=lambda each: each.startswith("127."))))
"""
)
_LISTEN = """
import os, socket, sys, threading
word = sys.argv[2].encode()
with socket.socket() as there:
    there.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        there.bind(("", int(sys.argv[1])))
        there.listen()
    except OSError as failure:
        sys.exit(str(failure.strerror))
    print("listens", flush=True)

    def answer():
        while True:
            with there.accept()[0] as come:
                come.sendall(word)

    threading.Thread(target=answer, daemon=True).start()
    while os.read(0, 4096):
        pass
"""
_TRY = (
    _ADDRESSES
    + """
import sys
port, word, patience, *names = sys.argv[1:]
reached, reasons = {}, {}
for name in names:
    try:
        with socket.create_connection((name, int(port)), float(patience)) as come:
            said = b""
            while len(said) < len(word):
                more = come.recv(100)
                if not more:
                    break
                said += more
            mine = come.getsockname()[0]
        if said == word.encode():
            reached[name] = found.get(mine, "")
        else:
            reasons[name] = "something else answers there"
    except OSError as failure:
        reasons[name] = failure.strerror or str(failure)
print(json.dumps([reached, reasons]))
"""
)


At = tuple[Connection, str]
"""A host, and the Python to use there: a bare python3 may lack json."""


def meeting(hosts: Sequence[At], port: int, address: str = "") -> tuple[str, list[str]]:
    """The address at which all hosts reach the first, at `port`, and for each host the network interface that leads
    there; "" where that can not be told. With `address` only that is tried.

    Raises:
        UsageError: the port is taken there. Unreachable: names the host that reaches no address, and why.
        HostError: a host.
    """
    first = hosts[0]
    candidates = [address] if address else list(json.loads(_asked(*first, _ALL)))
    word = secrets.token_hex(8)
    with _listening(*first, port, word):
        interfaces: list[dict[str, str]] = []
        for each in hosts:  # the first, too: it must reach itself by that name
            words = (str(port), word, str(PATIENCE_S), *candidates)
            reached, reasons = json.loads(_asked(*each, _TRY, *words))
            candidates = [name for name in candidates if name in reached]
            interfaces.append(reached)
            if not candidates:
                tried = "; ".join(f"{name}: {why}" for name, why in reasons.items())
                what = f"does not reach {first[0].layer} at port {port} ({tried})"
                cure = "open that port between the hosts, or name a way with launcher.address and launcher.port"
                raise Unreachable(what, layer=each[0].layer, cure=cure)
    return candidates[0], [reached[candidates[0]] for reached in interfaces]


def _asked(connection: Connection, python: str, code: str, *words: str) -> bytes:
    result = connection.run([python, "-IS", "-c", code, *words])
    if result.code:
        said = result.stderr.decode(errors="replace").strip().splitlines() or [f"it ended with {result.code}"]
        raise Unreachable(f"its network can not be looked at: {said[-1]}", layer=connection.layer)
    return result.stdout


@contextmanager
def _listening(connection: Connection, python: str, port: int, word: str) -> Iterator[None]:
    """Say `word` to whoever comes to `port` there, while the block lasts."""
    ready, said = threading.Event(), bytearray()
    read, write = os.pipe()

    def run() -> None:
        with os.fdopen(read, "rb", buffering=0) as stdin:
            words = [python, "-IS", "-c", _LISTEN, str(port), word]
            try:
                result = connection.run(words, stdin=stdin, stdout=lambda data: ready.set())
                said.extend(result.stderr)
            except HostError as failure:
                said.extend(failure.what.encode())
            finally:
                ready.set()

    listener = threading.Thread(target=run, name="meeting")
    listener.start()
    try:
        ready.wait()
        if said:
            cure = "wait for what has it, or choose another: launcher.port"
            raise UsageError(
                f"port {port} can not be used there: {said.decode(errors='replace').strip()}",
                where=connection.layer,
                cure=cure,
            )
        yield
    finally:
        os.close(write)
        listener.join()
