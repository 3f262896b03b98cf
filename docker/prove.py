"""Build an image twice without a cache, on the lab's own BuildKit, and print what both builds gave.

    .venv/bin/python docker/prove.py train-cu130 WHEELHOUSE ROOT

WHEELHOUSE is what `./inv env.wheelhouse` filled; ROOT takes the tars (README.md says how much room they need). The base
is Debian 12 with its Python, headers and compiler. Needs root, and Debian's archive.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from tests.images.lab import base_tar  # noqa: E402 - the project is not installed
from tests.lab.buildkit import buildkit  # noqa: E402

BASE = "debian-compilers:lab"


def main() -> int:
    """Run the build; its exit status, which is 9 when the two differ."""
    image, wheels, root = sys.argv[1:]
    with buildkit() as engine:
        environment = {**os.environ, **engine.environment}
        subprocess.run(["docker", "import", str(base_tar(compilers=True)), BASE], env=environment, check=True)
        begun = time.monotonic()
        build = ["build", image, "--base", BASE, "--wheels", wheels, "--root", root, "--check", "--json"]
        done = subprocess.run([sys.executable, "-B", "-m", "dflash", *build], cwd=PROJECT, env=environment, check=False)
        print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
