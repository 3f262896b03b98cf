"""`./inv bench hosts`: what a command through `ssh/lxc` costs, next to OpenSSH on the same machine, in the same run."""

from __future__ import annotations

import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dflash.hosts.chain import parse_chain
from dflash.hosts.connection import Connection
from dflash.hosts.reach import reach
from tests.lab.lxc import container
from tests.lab.sshd import Sshd, sshd

CONTAINER = "dflash-bench"
CHAIN = f"ssh:lab/lxc:{CONTAINER}"
BYTES = 256 << 20


class _Zeros:
    """A file of `left` bytes that takes no memory."""

    def __init__(self, left: int) -> None:
        self._left = left

    def read(self, size: int) -> bytes:
        size = min(size, self._left)
        self._left -= size
        return bytes(size)


def measure() -> dict[str, float]:
    """Start the lab's sshd and container, measure, and stop them. Medians; milliseconds, seconds, megabytes."""
    with sshd() as server, container(CONTAINER):
        return _figures(server)


def _figures(server: Sshd) -> dict[str, float]:
    reach(parse_chain(CHAIN)).close()  # writes the host key down, so that no measurement pays for it
    opened = _median(lambda: reach(parse_chain(CHAIN)).close(), 5)
    bare = _median(lambda: _ssh(server, "true"), 5)
    with reach(parse_chain(CHAIN)) as connection:
        command = _median(lambda: connection.run(["true"]), 200)
        begun = time.perf_counter()
        for _ in range(1000):
            connection.run(["true"])
        thousand = time.perf_counter() - begun
        download = _rate(lambda: connection.run(["head", "-c", str(BYTES), "/dev/zero"], stdout=len))
        upload = _rate(lambda: _upload(connection))
        agent_kb = _agent_peak_kb(connection)
    return {
        "command_ms": round(command * 1e3, 3),
        "controlmaster_ms": round(_control_master(server, "lab") * 1e3, 1),
        "controlmaster_plain_ms": round(_control_master(server, "lab-bash") * 1e3, 1),
        "thousand_commands_s": round(thousand, 2),
        "open_chain_s": round(opened, 3),
        "ssh_true_s": round(bare, 3),
        "upload_mb_s": round(upload, 1),
        "download_mb_s": round(download, 1),
        "peak_rss_mb": round(max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, agent_kb) / 1024, 1),
    }


def _median(body: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        body()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _rate(body: Callable[[], object]) -> float:
    return BYTES / 1e6 / _median(body, 5)


def _upload(connection: Connection) -> None:
    result = connection.run(["wc", "-c"], stdin=_Zeros(BYTES))  # type: ignore[arg-type]
    assert int(result.stdout) == BYTES


def _agent_peak_kb(connection: Connection) -> int:
    shown = connection.run(["sh", "-c", 'grep VmHWM "/proc/$1/status"', "sh", str(connection.hello.pid)]).stdout
    return int(shown.split()[1])


def _ssh(server: Sshd, *words: str, options: tuple[str, ...] = (), host: str = "lab") -> None:
    known = f"UserKnownHostsFile={server.known_hosts}"
    command = ["ssh", "-F", str(server.home / ".ssh" / "config"), "-o", known, *options, host, *words]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def _control_master(server: Sshd, host: str) -> float:
    """A command over an OpenSSH master connection that is open already. `lab` is root, whose shell reads this
    machine's rc files for every command; `lab-bash` a new user, whose rc files do next to nothing."""
    with tempfile.TemporaryDirectory() as folder:
        control = ("-o", f"ControlPath={Path(folder) / 'c'}")
        _ssh(server, "true", options=(*control, "-o", "ControlMaster=auto", "-o", "ControlPersist=60"), host=host)
        try:
            return _median(lambda: _ssh(server, "true", options=control, host=host), 20)
        finally:
            _ssh(server, options=(*control, "-O", "exit", "-q"), host=host)
