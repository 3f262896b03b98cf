"""A small project in a git repository of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path


def checkout_in(home: Path) -> Path:
    """Make one."""
    (home / "dflash").mkdir(parents=True)
    (home / "dflash" / "one.py").write_text("one = 1\ntwo = 2\n")
    (home / ".gitignore").write_text("ignored\n")
    git(home, "init", "-q")
    git(home, "add", ".")
    commit(home)
    return home


def git(home: Path, *words: str) -> None:
    """Have git do something there."""
    subprocess.run(["git", "-C", str(home), *words], check=True, capture_output=True)


def commit(home: Path) -> None:
    """Commit what was changed."""
    git(home, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-a", "-m", "one more")
