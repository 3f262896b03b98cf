"""What the image tests build: a small project of its own, with a few small real packages, on a Debian base."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.lab.service import CACHE, need
from tests.wheels import make_wheel, pin, repack

REPOSITORY = Path(__file__).parents[2]
BASE = "dflash-lab:python"
PACKAGES = ("packaging", "tenacity", "invoke")
SPEC = """\
name: {name}
python: ">=3.11,<3.14"
torch: "2.13.0+cpu"
torch_backend: cpu
"""
IMAGES = """\
small: {dockerfile: train.Dockerfile, environment: small}
served: {dockerfile: serve.Dockerfile, environment: small}
"""
COMMITTED = "2026-03-01T12:00:00+00:00"


def base_tar(*, compilers: bool = False) -> Path:
    """A tar of Debian bookworm with Python, made once and kept in the cache folder; `compilers` adds g++ and Python's
    headers, which an environment with torch wants."""
    need(["mmdebstrap"], ["mmdebstrap"])
    path = CACHE / ("bookworm-python3-compilers.tar" if compilers else "bookworm-python3-full.tar")
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            draft = Path(folder) / "rootfs.tar"
            include = "--include=python3,ca-certificates" + (",python3-dev,g++" if compilers else "")
            command = ["mmdebstrap", "--quiet", "--variant=minbase", include, "bookworm", str(draft)]
            subprocess.run(command, check=True, capture_output=True)
            draft.replace(path)
    return path


def make_wheels(folder: Path) -> Path:
    """A folder of wheels: some real packages as they are installed here, and one with a program of its own."""
    for name in PACKAGES:
        repack(folder, name)
    make_wheel(folder, "alpha", executables=())
    return folder


def make_project(folder: Path, wheels: Path) -> Path:
    """A working tree of git: this project's `docker/`, a package, and the environment `small` of those wheels."""
    shutil.copytree(REPOSITORY / "docker", folder / "docker")
    (folder / "docker" / "images.yaml").write_text(IMAGES)
    environment = folder / "envs" / "small"
    environment.mkdir(parents=True)
    (environment / "env.yaml").write_text(SPEC.format(name="small"))
    (environment / "requirements.lock").write_text("".join(pin(wheel) for wheel in sorted(wheels.glob("*.whl"))))
    (folder / "dflash").mkdir()
    (folder / "dflash" / "__init__.py").write_text('"""A package."""\n')
    (folder / "inv").write_text("#!/bin/sh\n")
    (folder / "inv").chmod(0o755)
    (folder / "link").symlink_to("inv")
    (folder / ".gitignore").write_text("/build/\n")
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def commit(project: Path) -> None:
    """Commit everything, at a fixed time by a fixed person."""
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "A commit")


def git(project: Path, *words: str) -> None:
    who = {f"GIT_{role}_{what}": f"a{what}" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    when = {"GIT_AUTHOR_DATE": COMMITTED, "GIT_COMMITTER_DATE": COMMITTED, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", *words], cwd=project, env={**os.environ, **who, **when}, check=True, capture_output=True)
