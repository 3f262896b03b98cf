"""A real LXC container from a Debian root file system, and the faithful stand-in for Proxmox's pct."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.lab.service import CACHE, need

PCT = """#!/bin/sh
# What pct.pm does with `pct exec ID -- ARGV`: lxc-attach, the words untouched, no shell.
[ "$1" = exec ] && [ "$3" = -- ] || exit 2
id=$2; shift 3
exec lxc-attach -n "$id" --keep-env -- "$@"
"""


def root_file_system() -> Path:
    """A tar of Debian bookworm with python3, made once and kept in the cache folder."""
    need(["mmdebstrap"], ["mmdebstrap"])
    path = CACHE / "bookworm-python3.tar"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            draft = Path(folder) / "rootfs.tar"
            include = "--include=python3-minimal,ca-certificates,sudo"
            command = ["mmdebstrap", "--quiet", "--variant=minbase", include, "bookworm", str(draft)]
            subprocess.run(command, check=True, capture_output=True)
            draft.replace(path)
    return path


@contextlib.contextmanager
def container(name: str) -> Iterator[str]:
    """A running container `name` in the default place, gone afterwards."""
    need(["lxc-start", "lxc-attach"], ["lxc"])
    place = Path("/var/lib/lxc") / name
    try:
        (place / "rootfs").mkdir(parents=True)
        subprocess.run(["tar", "-xf", str(root_file_system()), "-C", str(place / "rootfs")], check=True)
        (place / "config").write_text(
            "lxc.include = /usr/share/lxc/config/common.conf\n"
            f"lxc.uts.name = {name}\nlxc.rootfs.path = dir:{place}/rootfs\nlxc.net.0.type = empty\n"
            "lxc.apparmor.profile = unconfined\nlxc.init.cmd = /usr/bin/sleep infinity\n"
        )
        subprocess.run(["lxc-start", "-n", name], check=True)
        yield name
    finally:
        subprocess.run(["lxc-stop", "-n", name, "-k"], check=False, capture_output=True)
        subprocess.run(["rm", "-rf", "--one-file-system", str(place)], check=False)


def install_pct(folder: Path) -> str:
    """Write the stand-in into `folder`; the PATH with it in front."""
    program = folder / "pct"
    program.write_text(PCT)
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
