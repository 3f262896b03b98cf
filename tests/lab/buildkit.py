"""A Docker engine with BuildKit and the containerd image store, newer than the machine's own, and its client."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.lab.lxc import root_file_system
from tests.lab.service import CACHE, need, wait_until

ISOLATED = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount-proc", "--pid", "--fork", "--kill-child"]
"""Runs a program in mount and PID namespaces of its own. Its mounts are never in ours and go with its last process;
all its processes go with the first, and that goes with us, whatever ends us."""

START = """set -e
mount --bind "$1" "$2/root"
mount -o remount,bind,ro "$2/root"
for part in proc sys dev; do mount --rbind "/$part" "$2/root/$part"; done
for part in run tmp; do mount -t tmpfs tmpfs "$2/root/$part"; done
mount --bind "$2/state" "$2/root/mnt"
cd "$2/root"
pivot_root . media
umount --lazy /media
exec chroot . dockerd --data-root /mnt/data --exec-root /run/docker --pidfile /run/docker.pid \
    -H unix:///mnt/docker.sock --feature containerd-snapshotter=true --cgroup-parent "${2##*/}" \
    --bridge=none --iptables=false --ip6tables=false
"""
"""Start dockerd in the root $1, read-only, with what it writes in the folder $2. That becomes the root of the mount
namespace: with a root that is only this process's, `docker exec` would find itself outside of its container."""


@dataclass(frozen=True)
class Engine:
    """A running engine. `environment` are the variables with which a plain `docker` on this machine is its client."""

    socket: Path
    environment: dict[str, str]

    def run(self, *words: str, cwd: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `docker` with `words` on this machine, against the engine."""
        variables = {**os.environ, **self.environment}
        done = subprocess.run(["docker", *words], cwd=cwd, env=variables, capture_output=True, text=True)
        assert done.returncode == 0 or not check, done.stderr
        return done

    def base_image(self, name: str) -> str:
        """Make the lab's root file system an image `name`; its digest, which has the time in it."""
        return self.run("import", str(root_file_system()), name).stdout.strip()


@contextlib.contextmanager
def buildkit() -> Iterator[Engine]:
    """Start dockerd on a socket of its own. There is no network bridge, so RUN and run need `--network none` or host.

    Afterwards its processes, mounts, control groups and folder are gone.
    """
    root = _root()
    folder = Path(tempfile.mkdtemp(prefix="dflash-buildkit-"))
    try:
        socket, log = folder / "state" / "docker.sock", folder / "log"
        for name in ("root", "state", "bin", "config/cli-plugins"):
            (folder / name).mkdir(parents=True)
        # Both programs want a libc from 2021 and no other library, so the machine's own runs them. The rest of that
        # bin folder would not run: PATH gets a folder with nothing but `docker`.
        (folder / "bin/docker").symlink_to(root / "usr/bin/docker")
        (folder / "config/cli-plugins/docker-buildx").symlink_to(root / "usr/libexec/docker/cli-plugins/docker-buildx")
        environment = {
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "DOCKER_HOST": f"unix://{socket}",
            "DOCKER_CONFIG": str(folder / "config"),
        }
        engine = Engine(socket, environment)
        with log.open("wb") as output:
            words = [*ISOLATED, "sh", "-c", START, "sh", str(root), str(folder)]
            inside = {**os.environ, "TMPDIR": "/tmp"}  # ours may not be there, in a root of its own
            process = subprocess.Popen(words, env=inside, stdout=output, stderr=output)
        try:
            wait_until(lambda: _answers(engine, process, log), "dockerd", 30)
            yield engine
        finally:
            _end(process)
    finally:
        _remove_control_groups(folder.name)
        _remove(folder)


def _root() -> Path:
    """A Debian forky root with dockerd, made once and kept in the cache folder. Only ever used read-only."""
    need(["mmdebstrap", "setpriv", "unshare"], ["mmdebstrap", "debian-archive-keyring", "util-linux"])
    path = CACHE / "forky-docker"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "forky-docker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            draft = Path(tempfile.mkdtemp(dir=CACHE))
            try:
                include = "--include=docker.io,docker-cli,docker-buildx,ca-certificates"
                # Of a testing distribution the Release file may be past its date, and apt.conf has no key for it.
                late = '--aptopt=Acquire::Check-Valid-Until "false"'
                keys = "--keyring=/usr/share/keyrings/debian-archive-keyring.gpg"
                command = ["mmdebstrap", "--quiet", "--variant=minbase", include, late, keys, "forky"]
                subprocess.run([*ISOLATED, *command, str(draft / "root")], check=True, capture_output=True)
                (draft / "root").rename(path)
            finally:
                _remove(draft)
    return path


def _answers(engine: Engine, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, f"dockerd ended: {log.read_text()}"
    return engine.socket.exists() and engine.run("version", check=False).returncode == 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill dockerd, the child of `process` and the first of its PID namespace, and so all that dockerd has started.

    Asked to end, it would first wait 10 s for each container whose program ignores SIGTERM.
    """
    children = psutil.Process(process.pid).children() if process.poll() is None else []
    for child in children:
        child.kill()
    if not children:
        process.kill()
    process.wait(30)


def _remove_control_groups(name: str) -> None:
    """Remove the empty control groups of this name, which dockerd leaves, in every hierarchy."""
    for group, _, _ in os.walk("/sys/fs/cgroup", topdown=False):
        if name in Path(group).parts:
            os.rmdir(group)


def _remove(folder: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    assert not [mount for mount in mounts if mount.startswith(f"{folder}/")], mounts
    subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=True)
