"""File systems that are small or can not be written, for tests of what a run says about them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_file_system(folder: Path, size: str) -> Iterator[Path]:
    """A new file system of `size` (such as 8m) at `folder`. Only root can have one; other users skip the test."""
    if os.geteuid() != 0 and os.environ.get("CI") != "true":
        pytest.skip("only root can mount a file system")
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def frozen_file_system(folder: Path) -> Iterator[Path]:
    """A file system at `folder` on which whoever writes sleeps in the kernel, deaf to signals, as a process does in a
    driver whose device died. Only root can have one; other users skip the test."""
    if os.geteuid() != 0 and os.environ.get("CI") != "true":
        pytest.skip("only root can mount a file system")
    image = folder.with_suffix(".img")
    image.write_bytes(b"")
    os.truncate(image, 16 << 20)
    folder.mkdir()
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    _mount("-o", "loop", str(image), str(folder))
    try:
        subprocess.run(["fsfreeze", "--freeze", str(folder)], check=True)
        try:
            yield folder
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", str(folder)], check=True)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # lazy: who was frozen may not be gone yet


@contextmanager
def unwritable(folder: Path) -> Iterator[Path]:
    """`folder`, which exists, while it can not be written to: a read-only mount for root, a mode for others."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        try:
            yield folder
        finally:
            folder.chmod(0o755)
        return
    _mount("--bind", str(folder), str(folder))
    try:
        _mount("-o", "remount,ro,bind", str(folder))
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _mount(*words: str) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True)
    if done.returncode and os.environ.get("CI") != "true":
        pytest.skip(f"mount is not permitted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
