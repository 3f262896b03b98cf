"""A Docker engine of its own, with one container from the lab's root file system."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.lab.bare import PYTHON, apt_settings
from tests.lab.lxc import root_file_system
from tests.lab.service import alone, need, wait_until

IMAGE, NAME = "dflash-lab:bookworm", "dflash-lab"


@contextlib.contextmanager
def docker_container(*, bare: bool = False) -> Iterator[str]:
    """Start dockerd on a socket of its own, which DOCKER_HOST names, and a container; both are gone afterwards. A bare
    container has no Python, and this machine's network."""
    need(["dockerd", "docker"], ["docker.io"])
    with alone(), tempfile.TemporaryDirectory(prefix="dflash-docker-") as name:
        folder = Path(name)
        socket = f"unix://{folder}/docker.sock"
        engine = _engine(folder, socket)
        before = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = socket
        try:
            wait_until(lambda: docker("info", check=False).returncode == 0, "dockerd", 30)
            docker("import", str(root_file_system()), IMAGE)
            docker("run", "-d", "--network", "host" if bare else "none", "--name", NAME, IMAGE, "sleep", "infinity")
            if bare:
                docker("exec", NAME, "dpkg", "--purge", *PYTHON)
                (folder / "99lab").write_text(apt_settings())
                docker("cp", str(folder / "99lab"), f"{NAME}:/etc/apt/apt.conf.d/99lab")
            yield NAME
            docker("rm", "-f", NAME)
        finally:
            os.environ.pop("DOCKER_HOST")
            if before is not None:
                os.environ["DOCKER_HOST"] = before
            engine.terminate()
            engine.wait(30)
            # dockerd leaves the host's network, which it mounts for a container that uses that.
            netns = folder / "exec" / "netns" / "default"
            subprocess.run(["umount", "--quiet", str(netns)], check=False, capture_output=True)


def _engine(folder: Path, socket: str) -> subprocess.Popen[bytes]:
    words = ["dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"), "-H", socket]
    quiet = ["--pidfile", str(folder / "pid"), "--iptables=false", "--ip6tables=false", "--bridge=none"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen([*words, *quiet], stdout=log, stderr=log)


def docker(*words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["docker", *words], check=check, capture_output=True)
