"""The first SSH hop: Fabric opens the connection (ssh_config, ProxyJump, agent, identity files), and one channel of
it is driven directly, because Invoke's runner reads standard input at 100 bytes a second and splits characters."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import paramiko
from fabric import Connection as Fabric
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from dflash.hosts.chain import Ssh
from dflash.hosts.failures import HostError, HostKeyChanged, LoginFailed, Unreachable

CONNECT_S = 15
WINDOW = 8 << 20
PIECE = 1 << 18
ERRORS_KEPT = 1 << 16


class AcceptNew(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # paramiko has no types
    """OpenSSH's accept-new: an unknown key is written down, at the end of the file; nothing else in it is touched."""

    def __init__(self, known_hosts: Path) -> None:
        self._file = known_hosts

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Append the key."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            before = self._file.read_bytes()
            if before and not before.endswith(b"\n"):  # an entry of its own, whatever wrote the last one
                file.write(b"\n")
            file.write(f"{hostname} {key.get_name()} {key.get_base64()}\n".encode())


class SshStream:
    """A channel that runs one line in the login shell of the machine, and the connection it belongs to."""

    def __init__(self, hop: Ssh, words: Sequence[str]) -> None:
        """Connect and start `words`, none of which needs quoting.

        Raises:
            Unreachable, HostKeyChanged, LoginFailed: the machine can not be entered; the layer is this hop.
        """
        self._connection = connect(hop)
        try:
            transport = self._connection.transport
            self._channel = transport.open_session(window_size=WINDOW)
            self._channel.exec_command(" ".join(words))
        except (paramiko.SSHException, OSError, EOFError) as failure:
            _end(self._connection)
            raise Unreachable(f"no session could be opened ({failure})", layer=str(hop)) from failure
        self._tail = bytearray()

    def write(self, data: bytes) -> None:
        """Send all of `data`. Raises OSError when the channel is closed."""
        try:
            for start in range(0, len(data), PIECE):
                self._channel.sendall(data[start : start + PIECE])
        except EOFError as failure:  # the connection was closed under a write
            raise OSError("the connection was closed") from failure

    def read(self) -> bytes:
        """The next bytes; b"" at the end."""
        data: bytes = self._channel.recv(PIECE)
        self._collect()
        return data

    def _collect(self) -> None:
        while self._channel.recv_stderr_ready() and (data := self._channel.recv_stderr(ERRORS_KEPT)):
            self._tail += data
            del self._tail[:-ERRORS_KEPT]

    def errors(self) -> str:
        """The end of what came on the error side."""
        self._collect()
        return bytes(self._tail).decode(errors="replace")

    def abort(self) -> None:
        """Close the connection, which, unlike closing the channel, has nothing to send."""
        self._connection.transport.close()

    def close(self) -> None:
        """End the channel's input, and the connection."""
        self._channel.close()
        _end(self._connection)

    def status(self, timeout: float) -> int | None:
        """The line's exit status; None when it runs on, or when the machine never told."""
        if not self._channel.status_event.wait(timeout):
            return None
        status = self._channel.recv_exit_status()
        return None if status == -1 else status


def connect(hop: Ssh) -> Fabric:
    """An open connection, its host key checked: a new one is accepted, a changed one refused."""
    connection = Fabric(hop.host, user=hop.user, port=hop.port, connect_timeout=CONNECT_S)
    known = _known_hosts(connection)
    strict = str(connection.ssh_config.get("stricthostkeychecking", "")).lower() in ("yes", "true")
    policy = paramiko.RejectPolicy() if strict else AcceptNew(known[0])
    connection.client.set_missing_host_key_policy(policy)
    for file in known:
        if file.is_file():
            connection.client.load_system_host_keys(str(file))
    layer = str(hop)
    try:
        connection.open()
    except BaseException as failure:
        _end(connection)
        raise _named(failure, connection, known, layer) from failure
    return connection


def _end(connection: Fabric) -> None:
    """Close, and wait for the transport's thread."""
    transport = connection.client.get_transport()
    connection.client.close()
    if transport:
        transport.join(5)


def _named(failure: BaseException, connection: Fabric, known: Sequence[Path], layer: str) -> BaseException:
    if isinstance(failure, paramiko.BadHostKeyException):
        port = connection.port
        place = _line_of(connection.host if port == 22 else f"[{connection.host}]:{port}", known)
        what = f"the host key has changed: {place or 'another one'} is what was known"
        cure = "find out why before you remove that line: it may be another machine"
        return HostKeyChanged(what, layer=layer, cure=cure)
    if isinstance(failure, paramiko.AuthenticationException):
        cure = "check the user name, and that your key is on the machine (ssh -v says which keys are tried)"
        return LoginFailed(f"the login was refused ({failure})", layer=layer, cure=cure)
    if isinstance(failure, paramiko.SSHException | OSError | EOFError):
        return _unreachable(failure, connection, layer)
    return failure


def _unreachable(failure: BaseException, connection: Fabric, layer: str) -> HostError:
    place = f"{connection.host}:{connection.port}"
    if isinstance(failure, socket.gaierror):
        return Unreachable(f"the name {connection.host} can not be resolved", layer=layer, cure="check the name")
    if isinstance(failure, TimeoutError):
        return Unreachable(f"{place} did not answer in {CONNECT_S} s", layer=layer, cure="check address and network")
    if isinstance(failure, ConnectionRefusedError | paramiko.ssh_exception.NoValidConnectionsError):
        cure = "check the port, and that sshd runs there"
        return Unreachable(f"{place} refused the connection", layer=layer, cure=cure)
    if isinstance(failure, paramiko.SSHException) and "No authentication methods" in str(failure):
        return LoginFailed("there is no key to log in with", layer=layer, cure="give one in ssh_config or to ssh-agent")
    return Unreachable(f"{place}: {failure or type(failure).__name__}", layer=layer)


def _known_hosts(connection: Fabric) -> list[Path]:
    configured = connection.ssh_config.get("userknownhostsfile", "~/.ssh/known_hosts").split()
    return [*(Path(name).expanduser() for name in configured), Path("/etc/ssh/ssh_known_hosts")]


def _line_of(hostname: str, files: Sequence[Path]) -> str | None:
    """`file:line` of the entry that names `hostname`."""
    for file in files:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
        for number, line in enumerate(lines, start=1):
            entry = _entry(line, number)
            if entry is None or entry.key is None:
                continue
            keys = paramiko.HostKeys()
            for name in entry.hostnames:
                keys.add(name, entry.key.get_name(), entry.key)
            if keys.lookup(hostname):
                return f"{file}:{number}"
    return None


def _entry(line: str, number: int) -> HostKeyEntry | None:
    try:
        return HostKeyEntry.from_line(line, number)
    except (paramiko.SSHException, InvalidHostKey):  # a comment, or an entry that paramiko can not read
        return None
