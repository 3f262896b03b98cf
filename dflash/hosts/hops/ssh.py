"""Another machine, by the `ssh` program of the layer before (the first hop of a chain is Fabric's)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dflash.hosts.chain import Ssh
from dflash.hosts.failures import HostError, HostKeyChanged, LoginFailed, Unreachable

OPTIONS = ("BatchMode=yes", "StrictHostKeyChecking=accept-new", "ConnectTimeout=15", "LogLevel=ERROR")


def wrap(hop: Ssh, argv: Sequence[str]) -> list[str]:
    """ssh joins the words with spaces for the login shell there; none of them needs quoting in any shell."""
    words = ["ssh", "-T", "-e", "none"]
    for option in OPTIONS:
        words += ["-o", option]
    if hop.port:
        words += ["-p", str(hop.port)]
    if hop.user:
        words += ["-l", hop.user]
    return [*words, "--", hop.host, "exec", *argv]


def classify(hop: Ssh, layer: str, status: int | None, stderr: str) -> HostError | None:
    """ssh itself ends with 255 and says why on standard error."""
    if status != 255:
        return None
    said = stderr.lower()
    if "identification has changed" in said or "host key verification failed" in said:
        place = re.search(r"Offending .* key in (\S+):(\d+)", stderr)
        where = f" (known as line {place[2]} of {place[1]} there)" if place else ""
        return HostKeyChanged(f"the host key has changed{where}", layer=layer, cure="make sure why, then remove it")
    if "permission denied" in said or "too many authentication failures" in said:
        return LoginFailed("ssh refused the login", layer=layer, cure="check the user and the keys on the layer before")
    if "could not resolve" in said:
        return Unreachable(f"the name {hop.host} can not be resolved", layer=layer)
    for sign, what in (("refused", "the connection was refused"), ("timed out", "no answer came in time")):
        if sign in said:
            return Unreachable(what, layer=layer, cure="check address and port, and that sshd runs")
    return None
