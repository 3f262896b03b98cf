"""What the lab's real peers need from the machine, and what happens where it is not there."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("DFLASH_LAB_CACHE", Path.home() / ".cache" / "dflash-lab"))


def need(programs: Sequence[str], packages: Sequence[str]) -> None:
    """Have `programs`, by apt where we are root. Without them a test skips; with CI=true that is a failure."""
    if os.geteuid() == 0 and not all(map(shutil.which, programs)) and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-qq", "-y", *packages]):
            subprocess.run(command, env=environment, check=False, capture_output=True)
    missing = [program for program in programs if not shutil.which(program)]
    if os.geteuid() != 0:
        missing.append("root")
    if missing:
        reason = f"the lab lacks {', '.join(missing)}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


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
