"""Layer 1, the login: what is printed, how many may come at once, whether one can be root. (A host key that changed, a
refused login and a shell that never answers end the way there, by their own errors: dflash/hosts/failures.py.)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dflash.finding import Finding
from dflash.provision.checks.faults import fault
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.login import LOGIN_SHELL, SSH_SERVER, SUDO, USER

HOST: tuple[Fact[Any], ...] = (USER, SUDO, LOGIN_SHELL, SSH_SERVER)
INSIDE: tuple[Fact[Any], ...] = ()


def judge(host: Facts, inside: Facts, want: Wanted) -> Iterator[Finding]:
    """One finding each for the login shell, sshd's limits, and root."""
    shell, server = host[LOGIN_SHELL], host[SSH_SERVER]
    if shell.noise:
        lines = shell.noise.splitlines()
        more = f", and {len(lines) - 1} more lines" if len(lines) > 1 else ""
        cure = f"in the rc files of {shell.path}, print only where a terminal is: [ -t 1 ] && …"
        yield fault("login-noise", "login shell", f"{shell.path} prints {lines[0]!r}{more}", cure, "warn")
    elif shell.path:
        yield Finding("ok", "login shell", f"{shell.path}, silent")

    startups = (server.max_startups or "").partition(":")[0]
    few = [f"MaxSessions {server.max_sessions}"] if server.max_sessions is not None and server.max_sessions < 2 else []
    few += [f"MaxStartups {server.max_startups}"] if startups.isdigit() and int(startups) < 4 else []
    if few:
        cure = "raise them in sshd_config: a jump host and a second connection need them"
        yield fault("few-sessions", "sshd", ", ".join(few), cure, "warn")
    elif server.max_sessions is not None:
        penalties = ", penalties on" if server.penalties not in (None, "no") else ""
        found = f"MaxSessions {server.max_sessions}, MaxStartups {server.max_startups}{penalties}"
        yield Finding("ok", "sshd", found)

    if host[USER] == 0:
        yield Finding("ok", "user", "root")
    elif host[SUDO] is not None:
        cure = "allow the user in sudoers with NOPASSWD, or log in as root; nothing can be mended there until then"
        yield fault("no-root", "user", f"is number {host[USER]}, and sudo -n is refused: {host[SUDO]}", cure, "warn")
    else:
        yield Finding("ok", "user", f"number {host[USER]}, root by sudo")
