"""A real sshd on loopback, with a user for each login shell, and an ssh_config that names them."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lab.network import Link
from tests.lab.service import alone, free_port, need, wait_until

SHELLS = ("dash", "bash", "tcsh", "fish")


@dataclass(frozen=True)
class Sshd:
    """A running sshd. `home` has the .ssh that reaches it: hosts `lab` (root), `lab-dash`, `lab-bash`, …"""

    port: int
    home: Path
    pid: int
    key: Path

    @property
    def known_hosts(self) -> Path:
        return self.home / ".ssh" / "known_hosts"


def user_of(shell: str) -> str:
    return f"dflab-{shell}"


@contextlib.contextmanager
def sshd() -> Iterator[Sshd]:
    """Start sshd, and make users whose home is in its folder; all are gone afterwards. Meanwhile HOME is the caller's,
    whose .ssh reaches it."""
    need(["sshd", "ssh", "tcsh", "fish", "sudo"], ["openssh-server", "openssh-client", "tcsh", "fish", "sudo"])
    # Not pytest's folder: the users must be able to enter it.
    with alone(), tempfile.TemporaryDirectory(prefix="dflash-lab-") as name:
        Path(name).chmod(0o755)
        with _running(Path(name)) as server:
            before = os.environ["HOME"]
            os.environ["HOME"] = str(server.home)
            try:
                yield server
            finally:
                os.environ["HOME"] = before


@contextlib.contextmanager
def _running(folder: Path) -> Iterator[Sshd]:
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    keys = folder / "authorized"
    keys.write_text((folder / "user.pub").read_text())
    port = free_port()
    configuration = folder / "sshd_config"
    configuration.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {keys}\nUsePAM no\n"
        "StrictModes no\nPidFile none\nPermitRootLogin yes\nPasswordAuthentication no\nMaxStartups 100\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    sudoers = Path("/etc/sudoers.d/dflash-lab")
    with contextlib.ExitStack() as stack:
        for shell in SHELLS:
            stack.enter_context(_user(shell, folder))
        users = " ".join(user_of(shell) for shell in SHELLS).replace(" ", ",")
        sudoers.write_text(f"{users} ALL=(ALL) NOPASSWD: ALL\n")
        sudoers.chmod(0o440)
        stack.callback(sudoers.unlink, missing_ok=True)
        process = subprocess.Popen([_program(), "-f", str(configuration), "-D", "-E", str(folder / "log")])
        stack.callback(_end, process)
        wait_until(lambda: _answers("127.0.0.1", port), "sshd")
        yield Sshd(port, _home(folder, port), process.pid, folder / "user")


@contextlib.contextmanager
def sshd_behind(way: Link, server: Sshd) -> Iterator[None]:
    """Another sshd with the same keys at this end of a link. ssh_config knows it as `lab-far`, and the lab's own sshd,
    which a caller at the other end reaches only from there, as `lab-inner`."""
    folder = server.key.parent
    configuration, port = folder / "sshd_config_far", free_port()
    text = (folder / "sshd_config").read_text().replace(f"Port {server.port}", f"Port {port}")
    configuration.write_text(text.replace("ListenAddress 127.0.0.1", f"ListenAddress {way.address}"))
    config = server.home / ".ssh" / "config"
    before, login = config.read_text(), f"User root\n  IdentityFile {server.key}\n"
    config.write_text(
        f"{before}Host lab-far\n  HostName {way.address}\n  Port {port}\n  {login}"
        f"Host lab-inner\n  HostName 127.0.0.1\n  Port {server.port}\n  ProxyJump lab-far\n  {login}"
    )
    process = subprocess.Popen([_program(), "-f", str(configuration), "-D", "-E", str(folder / "log-far")])
    try:
        wait_until(lambda: _answers(way.address, port), "the far sshd")
        yield
    finally:
        _end(process)
        config.write_text(before)


def _program() -> str:
    """sshd wants to be called by its whole path."""
    return shutil.which("sshd") or "sshd"


def _answers(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), 1):
        return True
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(10)


@contextlib.contextmanager
def _user(shell: str, folder: Path) -> Iterator[None]:
    name, home = user_of(shell), folder / f"home-{shell}"
    with contextlib.suppress(KeyError):
        pwd.getpwnam(name)
        subprocess.run(["userdel", name], check=True)
    path = shutil.which(shell)
    subprocess.run(
        ["useradd", "-m", "-d", str(home), "-p", "*", "-s", str(path), name], check=True, capture_output=True
    )
    try:
        yield
    finally:
        subprocess.run(["userdel", "-r", name], check=False, capture_output=True)


def _home(folder: Path, port: int) -> Path:
    ssh = folder / "caller" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    blocks = [("lab", "root"), *((f"lab-{shell}", user_of(shell)) for shell in SHELLS)]
    (ssh / "config").write_text(
        "".join(
            f"Host {host}\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  IdentityFile {folder}/user\n"
            for host, user in blocks
        )
    )
    os.chmod(ssh / "config", 0o600)
    return ssh.parent
