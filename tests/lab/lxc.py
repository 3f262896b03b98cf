"""A real LXC container from a Debian root file system, and the faithful stand-in for Proxmox's pct."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.lab.bare import make_bare
from tests.lab.service import CACHE, alone, need

MARK = "dflash-lab"
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
def container(
    name: str,
    files: Mapping[Path, Path] | None = None,
    *,
    tar: Path | None = None,
    variables: Mapping[str, str] | None = None,
    bare: bool = False,
) -> Iterator[str]:
    """A running container `name` in the default place, gone afterwards, of the root file system in `tar`. `files` of
    this machine appear in it too, and `variables` are set in it. A bare one has no Python, and this machine's
    network."""
    need(["lxc-start", "lxc-attach"], ["lxc"])
    place = Path("/var/lib/lxc") / name
    with contextlib.ExitStack() as stack:
        stack.enter_context(alone())
        if (place / MARK).exists():
            _remove(name, place)  # a lab that was killed left it
        assert not place.exists(), f"there is a container {name} that is not the lab's: {place}"
        stack.callback(_remove, name, place)
        (place / "rootfs").mkdir(parents=True)
        (place / MARK).touch()
        subprocess.run(["tar", "-xf", str(tar or root_file_system()), "-C", str(place / "rootfs")], check=True)
        if bare:
            make_bare(place / "rootfs")
        network = "none" if bare else "empty"
        entries = [
            f"lxc.mount.entry = {file} {inside.relative_to('/')} none bind,create=file 0 0\n"
            for inside, file in (files or {}).items()
        ] + [f"lxc.environment = {key}={value}\n" for key, value in (variables or {}).items()]
        (place / "config").write_text(
            "lxc.include = /usr/share/lxc/config/common.conf\n"
            f"lxc.uts.name = {name}\nlxc.rootfs.path = dir:{place}/rootfs\nlxc.net.0.type = {network}\n"
            "lxc.apparmor.profile = unconfined\nlxc.init.cmd = /usr/bin/sleep infinity\n" + "".join(entries)
        )
        subprocess.run(["lxc-start", "-n", name], check=True)
        yield name


def _remove(name: str, place: Path) -> None:
    subprocess.run(["lxc-stop", "-n", name, "-k"], check=False, capture_output=True)
    subprocess.run(["rm", "-rf", "--one-file-system", str(place)], check=False)


def install_pct(folder: Path) -> str:
    """Write the stand-in into `folder`; the PATH with it in front."""
    return install(folder, "pct", PCT)


def install(folder: Path, name: str, script: str) -> str:
    """Write a program into `folder`; the PATH with it in front."""
    program = folder / name
    program.write_text(script)
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@contextlib.contextmanager
def free_name(name: str) -> Iterator[Path]:
    """The folder of a container that the test makes itself under `name`; gone afterwards."""
    need(["lxc-start", "lxc-attach"], ["lxc"])
    place = Path("/var/lib/lxc") / name
    with alone(), contextlib.ExitStack() as stack:
        if (place / MARK).exists():
            _remove(name, place)
        assert not place.exists(), f"there is a container {name} that is not the lab's: {place}"
        stack.callback(_remove, name, place)
        place.mkdir()
        (place / MARK).touch()
        yield place
