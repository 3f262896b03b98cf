"""What the lab's real peers need from the machine, and what happens where it is not there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("DFLASH_LAB_CACHE", Path.home() / ".cache" / "dflash-lab"))
CGROUPS = Path("/sys/fs/cgroup")


def need(programs: Sequence[str], packages: Sequence[str]) -> None:
    """Have `programs`, by apt where we are root. Without them a test skips; with CI=true that is a failure."""
    if os.geteuid() == 0 and not all(map(shutil.which, programs)) and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-qq", "-y", *packages]):
            subprocess.run(command, env=environment, check=False, capture_output=True)
    missing = [program for program in programs if not shutil.which(program)]
    if os.geteuid() != 0:
        missing.append("root")
    _refuse(missing)


def need_cgroup(controller: str) -> None:
    """Have a control group hierarchy of the first version. Without it as without a program."""
    _refuse([] if (CGROUPS / controller).is_dir() else [f"cgroup v1 with {controller}"])


def _refuse(missing: Sequence[str]) -> None:
    if missing:
        reason = f"the lab lacks {', '.join(missing)}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


class _Lab:
    """The lab's users and containers have fixed names: one process at a time has them, others wait."""

    def __init__(self) -> None:
        self._users, self._file = 0, -1

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lab; a process that holds it already goes on at once."""
        if not self._users:
            CACHE.mkdir(parents=True, exist_ok=True)
            self._file = os.open(CACHE / "lab.lock", os.O_WRONLY | os.O_CREAT, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                os.close(self._file)


alone = _Lab().alone


def free_port() -> int:
    """A TCP port of the loopback that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def wait_until(ready: Callable[[], object], what: str, seconds: float = 15.0) -> None:
    """Poll until `ready()` is true."""
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until, f"{what} is not ready after {seconds:.0f} s"
        time.sleep(0.02)
