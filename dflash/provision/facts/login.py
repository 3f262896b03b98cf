"""What a login by SSH meets: who one is, what the shell's files print, how many channels sshd lets through."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dflash.provision.fact import Fact, Output


def _user(output: Output) -> int | None:
    return int(output.stdout) if output.ok and output.stdout.strip().isdigit() else None


USER = Fact("user", ("id", "-u"), _user)
"""The user's number; 0 is root."""


def _sudo(output: Output) -> str | None:
    if output.ok:
        return None
    lines = output.stderr.strip().splitlines()
    return lines[-1] if lines else f"it ended with {output.status}"


SUDO = Fact("sudo", ("sudo", "-n", "true"), _sudo)
"""Why sudo does not let this user be root without a question; None when it does."""


@dataclass(frozen=True)
class LoginShell:
    """The user's shell, and what it prints, by its rc files, before a command that prints nothing."""

    path: str
    noise: str


# sshd runs a user's command in just this way. SHLVL: bash takes a shell below another for one without rc files.
_SHELL = """\
shell=$(getent passwd "$(id -u)" | cut -d: -f7)
echo "$shell"
[ -x "$shell" ] && unset SHLVL && exec "$shell" -c : </dev/null 2>&1
:
"""


def _login_shell(output: Output) -> LoginShell:
    path, _, noise = output.stdout.partition("\n")
    return LoginShell(path, noise.strip())


LOGIN_SHELL = Fact("login shell", ("sh", "-c", _SHELL), _login_shell)


@dataclass(frozen=True)
class SshServer:
    """sshd's settings; None where they could not be read (that needs root)."""

    max_sessions: int | None = None
    max_startups: str | None = None
    penalties: str | None = None


def _server(output: Output) -> SshServer:
    found = dict(re.findall(r"^(maxsessions|maxstartups|persourcepenalties) (.+)$", output.stdout, re.MULTILINE))
    sessions = found.get("maxsessions", "")
    return SshServer(
        int(sessions) if sessions.isdigit() else None, found.get("maxstartups"), found.get("persourcepenalties")
    )


_LIMITS = 'PATH="$PATH:/usr/sbin:/sbin"; sshd -T | grep -E "^(max|persource)"'
SSH_SERVER = Fact("sshd", ("sh", "-c", _LIMITS), _server)
