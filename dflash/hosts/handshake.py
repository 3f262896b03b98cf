"""How the agent gets to the far end.

The login shell there sees one line, `exec … sh -s`, whose words mean the same in every shell. What follows goes to
that `sh` by its standard input: one script line that becomes python3, which says a word that nobody can guess. Only
then is the agent sent, by length. A shell reads ahead; before the word nothing is sent that it could swallow, and
what rc files and banners print before the word is kept apart.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path

from dflash.hosts import agent
from dflash.hosts.stream import ByteStream

SHELL = ("sh", "-s")
NOISE_KEPT = 1 << 16
PATIENCE_S = 60.0
"""How long a far end may take to start python3; a cold disk needs some seconds."""

_BOOT = """\
import os, sys, zlib
def take(n):
    b = b""
    while len(b) < n:
        c = os.read(0, n - len(b))
        if not c: sys.exit(1)
        b += c
    return b
word = ("old %d.%d" % sys.version_info[:2]) if sys.version_info < (3, 8) else "ready"
os.write(1, (sys.argv[1] + " " + word + chr(10)).encode())
if word == "ready":
    exec(compile(zlib.decompress(take(int(take(8), 16))), "dflash-agent", "exec"), {"__name__": "__main__"})
"""


@dataclass(frozen=True)
class Refusal:
    """The far end was not reached. `word` is what python's start said instead of ready (`no python3`, `old 3.7`), or
    `silent` when nothing was said in PATIENCE_S, else None; then `status` and `errors` are the way's own, and `noise`
    what it printed."""

    word: str | None
    status: int | None
    errors: str
    noise: str


@dataclass(frozen=True)
class Welcome:
    """The agent runs; `rest` are bytes that already belong to its frames, `noise` was printed before."""

    rest: bytes
    noise: str


def script(nonce: str) -> bytes:
    """The one line for `sh -s`. Its text is the same for every caller but for the nonce, which is hexadecimal."""
    return (
        f"command -v python3 >/dev/null 2>&1 || {{ echo {nonce} no python3; exit 127; }}; "
        f"exec python3 -IS -c '{_BOOT}' {nonce}\n"
    ).encode()


def shake(stream: ByteStream) -> Welcome | Refusal:
    """Start the agent at the far end of a fresh stream."""
    silent = threading.Event()

    def give_up() -> None:
        silent.set()
        stream.abort()

    patience = threading.Timer(PATIENCE_S, give_up)
    patience.start()
    try:
        outcome = _shake(stream)
    finally:
        patience.cancel()
        patience.join()
    if silent.is_set():
        return Refusal("silent", None, stream.errors(), "")
    return outcome


def _shake(stream: ByteStream) -> Welcome | Refusal:
    nonce = f"dflash-{secrets.token_hex(8)}"
    marker = f"{nonce} ".encode()
    seen = b""
    try:
        with contextlib.suppress(OSError):  # it has closed already: what it printed before that tells why
            stream.write(script(nonce))
        while marker not in seen or b"\n" not in seen.partition(marker)[2]:
            data = stream.read()
            if not data:
                break
            seen = seen[-NOISE_KEPT:] + data
        noise, found, rest = seen.partition(marker)
        word, ended, rest = rest.partition(b"\n")
        if found and ended and word == b"ready":
            code = zlib.compress(Path(agent.__file__).read_bytes(), 9)
            stream.write(b"%08x" % len(code) + code)
            return Welcome(rest, noise.decode(errors="replace"))
    except OSError:  # the far end closed while we wrote; its status tells why
        noise, found, word = seen, b"", b""
    status = stream.status(5)
    said = word.decode(errors="replace") if found else None
    return Refusal(said, status, stream.errors(), noise.decode(errors="replace"))
