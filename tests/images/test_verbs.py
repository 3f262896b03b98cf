"""The verbs of images as a person types them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.images.lab import REPOSITORY


def inv(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-m", "dflash", *words]
    return subprocess.run(command, cwd=REPOSITORY, env={**os.environ, **variables}, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("build", "trian"), 2, "error: there is no image 'trian'; did you mean 'train'?\n"),
        (("build", "--push", "a@b"), 2, "error: --push: 'a@b' is not a place to push to; write REPOSITORY or"),
        (("build", "--wheels", "/nowhere"), 2, "error: --wheels /nowhere: there is no such folder; name a folder of"),
        (("image.verify", "some/image:1"), 2, "error: 'some/image:1' is not an image by its digest; a tag can be"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], status: int, said: str):
    done = inv(*words)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def test_a_machine_without_docker_is_one_line(tmp_path: Path):
    git = tmp_path / "git"
    git.symlink_to(subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout.strip())
    done = inv("build", PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (9, "")
    assert done.stderr == (
        "error: there is no program docker here; install Docker 26 or newer (Debian: docker.io, docker-cli,"
        " docker-buildx)\n"
    )
