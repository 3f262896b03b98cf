"""An LXD daemon of its own, with one instance from the lab's root file system, and a stand-in for Incus's client."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tests.lab.lxc import install, root_file_system
from tests.lab.service import alone, need

NAME, IMAGE = "dflash-lab-lxd", "dflash-lab"

RAW = "lxc.init.cmd = /usr/bin/sleep infinity\nlxc.apparmor.profile = unconfined"

INCUS = """#!/bin/sh
exec lxc "$@"
"""


@contextlib.contextmanager
def lxd_instance() -> Iterator[str]:
    """Start lxd in a folder of its own, which LXD_DIR names, and an instance; both are gone afterwards."""
    need(["lxd", "lxc", "unshare"], ["lxd", "lxd-client"])
    with alone(), tempfile.TemporaryDirectory(prefix="dflash-lxd-") as name:
        folder = Path(name)
        with mock.patch.dict(os.environ, {"LXD_DIR": str(folder / "lxd"), "LXD_CONF": str(folder / "client")}):
            daemon = _daemon(folder)
            try:
                subprocess.run(["lxd", "waitready", "--timeout", "30"], check=True, capture_output=True)
                lxc("storage", "create", "default", "dir")
                lxc("image", "import", str(_metadata(folder)), str(root_file_system()), "--alias", IMAGE)
                create(NAME, IMAGE, "-c", "security.privileged=true", "-c", f"raw.lxc={RAW}")
                lxc("start", NAME)
                yield NAME
            finally:
                lxc("delete", "-f", NAME, check=False)
                daemon.terminate()
                daemon.wait(30)
                with contextlib.suppress(OSError):  # liblxc leaves a folder for its locks, empty by now
                    os.removedirs(f"/run/lxc/lock{folder}/lxd/containers")


def _daemon(folder: Path) -> subprocess.Popen[bytes]:
    """In namespaces of its own: what it mounts ends with it, and its look for newer instance types goes nowhere."""
    (folder / "lxd").mkdir()
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(["unshare", "--net", "--mount", "lxd"], stdout=log, stderr=log)


def _metadata(folder: Path) -> Path:
    """The small half of a split image."""
    (folder / "metadata.yaml").write_text(f"architecture: {os.uname().machine}\ncreation_date: 1\n")
    subprocess.run(["tar", "-cf", "metadata.tar", "metadata.yaml"], cwd=folder, check=True)
    return folder / "metadata.tar"


def create(name: str, *words: str) -> None:
    """An instance that does not run yet."""
    lxc("init", *words, name, "-s", "default")


def lxc(*words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """LXD's client; what it finds on its standard input, `init` takes for the configuration."""
    return subprocess.run(["lxc", *words], stdin=subprocess.DEVNULL, check=check, capture_output=True)


def install_incus(folder: Path) -> str:
    """Write a client named incus, which has LXD's form, into `folder`; the PATH with it in front."""
    return install(folder, "incus", INCUS)
