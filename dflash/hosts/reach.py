"""Open a chain: find the way, start the agent at its end, and say on which layer it failed if it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from dflash.hosts.chain import Chain, Hop, Local, Ssh
from dflash.hosts.connection import Connection
from dflash.hosts.failures import HostError, LostConnection, NoPython, ProgramMissing, Unreachable
from dflash.hosts.handshake import PATIENCE_S, SHELL, Refusal, shake
from dflash.hosts.hops import classify, probe, wrap
from dflash.hosts.stream import ByteStream, ProgramStream

P = ParamSpec("P")
T = TypeVar("T")


def reaching_again(attempts: int, most_s: float) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Calls what it decorates anew where a connection breaks, up to `attempts` times in all, after random waits that
    grow up to `most_s` seconds."""
    from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

    return retry(
        retry=retry_if_exception_type((LostConnection, Unreachable)),
        stop=stop_after_attempt(attempts),
        wait=wait_random_exponential(max=most_s),
        reraise=True,
    )


def reach(chain: Chain) -> Connection:
    """A connection to the end of `chain`.

    Raises:
        HostError: the first layer that fails, each by its own class.
    """
    hops = [hop for hop in chain.hops if not isinstance(hop, Local)]
    stream = open_shell(chain)
    outcome = shake(stream)
    if not isinstance(outcome, Refusal):
        return Connection(stream, str(chain), outcome.rest)
    stream.close()
    raise _diagnose(hops, outcome, str(chain))


def open_shell(chain: Chain) -> ByteStream:
    """The way to `sh -s` at the end of `chain`. It is also the way in where there is no python3.

    Raises:
        HostError: the first hop could not be entered; of later ones, the stream's end tells.
    """
    hops = [hop for hop in chain.hops if not isinstance(hop, Local)]
    if hops and isinstance(hops[0], Ssh):
        from dflash.hosts.sshchannel import SshStream

        return SshStream(hops[0], ["exec", *wrap(hops[1:], SHELL)])
    argv = wrap(hops, SHELL)
    try:
        return ProgramStream(argv)
    except FileNotFoundError as failure:
        layer = str(hops[0]) if hops else "local"
        raise Unreachable(f"this machine has no program {argv[0]!r}", layer=layer) from failure


def _diagnose(hops: Sequence[Hop], refusal: Refusal, layer: str) -> HostError:
    """Why the end of `hops` was not reached: of all prefixes, the first that fails is to blame."""
    more = ""
    try:
        if len(hops) > 1 or (hops and probe(hops[-1])):
            with reach(Chain(tuple(hops[:-1]) or (Local(),))) as before:
                more = _ask(before, probe(hops[-1]))
    except HostError as earlier:
        return earlier
    if refusal.word == "silent":
        what = f"nothing answered in {PATIENCE_S:.0f} s"
        return Unreachable(what, layer=layer, cure="look whether that layer, or its login shell, hangs")
    if refusal.word is not None and refusal.word.startswith("old"):
        version = refusal.word.partition(" ")[2]
        return NoPython(f"python3 there is {version}; the agent needs 3.8", layer=layer, cure="install a newer one")
    if refusal.word is not None:
        return NoPython("there is no python3", layer=layer, cure="install python3 there")
    known = classify(hops[-1], layer, refusal.status, refusal.errors + more) if hops else None
    if known:
        return known
    said = (refusal.errors or refusal.noise).strip().splitlines()
    what = f"it ended with status {refusal.status}" if refusal.status is not None else "it ended"
    printed = f", saying: {said[-1]}" if said else ""
    cure = "look at the rc files of its login shell" if hops and isinstance(hops[-1], Ssh) else None
    return Unreachable(f"{what} before anything could run{printed}", layer=layer, cure=cure)


def _ask(layer: Connection, argv: list[str] | None) -> str:
    if not argv:
        return ""
    try:
        result = layer.run(argv)
    except ProgramMissing:
        return ""
    return "\n" + (result.stdout + result.stderr).decode(errors="replace")
