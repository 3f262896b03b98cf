"""`./inv bench environments`: what making and verifying train-cu130 cost, beside uv alone, in the same run.

The lock's wheels must be in uv's cache already; the first run fetches them. Medians; seconds, gigabytes.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dflash.environments.locking import uv
from dflash.environments.remote import HostEnvironments, on_host
from dflash.environments.spec import read_spec
from dflash.environments.wheelhouse import python_for
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host

FOLDER = Path(__file__).parents[1] / "envs" / "train-cu130"
ROUNDS = 3


def measure() -> dict[str, float]:
    """`create_s`: env.create, the connection open; `uv_sync_s`: uv venv and uv pip sync alone, bringing files from the
    cache in the same way; `verify_gb_s`: env.verify, every file hashed, in the page cache; `quick_verify_s`."""
    with tempfile.TemporaryDirectory(prefix="dflash-bench-", dir=Path.home()) as name:
        host = Host("here", parse_chain("local"), root=name)
        with on_host(host, lambda line: print(line, file=sys.stderr)) as environments:
            return _figures(environments, Path(name))


def _figures(environments: HostEnvironments, root: Path) -> dict[str, float]:
    environments.create(FOLDER)  # fills uv's cache where it is cold
    shutil.rmtree(root / "envs")
    made, alone = [], []
    for _ in range(ROUNDS):  # in turn, so that both meet the same disk
        alone.append(_seconds(lambda: _uv_alone(root / "alone")))
        shutil.rmtree(root / "alone")
        made.append(_seconds(lambda: environments.create(FOLDER)))
        if len(made) < ROUNDS:
            shutil.rmtree(root / "envs")
    (row,) = environments.listed()
    subprocess.run(["sync"], check=True)  # what is still being written would slow the reading
    full, quick, size = [], [], 0
    for _ in range(ROUNDS):
        begun = time.monotonic()
        findings, reading = environments.verify(FOLDER, row["path"])
        full.append(time.monotonic() - begun)
        size = reading.snapshot.hashed_bytes
        quick.append(_seconds(lambda: environments.verify(FOLDER, row["path"], "quick")))
        if any(each.severity == "block" for each in findings):
            raise RuntimeError(f"the environment is not as it was made: {findings}")
    return {
        "create_s": round(statistics.median(made), 2),
        "uv_sync_s": round(statistics.median(alone), 2),
        "verify_gb_s": round(size / 1e9 / statistics.median(full), 2),
        "quick_verify_s": round(statistics.median(quick), 2),
        "size_gb": round(size / 1e9, 2),
    }


def _uv_alone(place: Path) -> None:
    """As a person would, who wants no hard links into the cache either."""
    spec = read_spec(FOLDER / "env.yaml")
    copies = {"UV_LINK_MODE": "copy"}
    for words in (
        ("venv", "--quiet", "--no-project", "--python", python_for(spec), str(place)),
        (
            *("pip", "sync", "--quiet", "--require-hashes", "--python", str(place / "bin" / "python")),
            str(FOLDER / "requirements.lock"),
        ),
    ):
        done = uv(*words, cwd=FOLDER, environment=copies)
        if done.returncode:
            raise RuntimeError(done.stderr)


def _seconds(body: Callable[[], object]) -> float:
    begun = time.monotonic()
    body()
    return time.monotonic() - begun
