"""A folder in the shape of a compile cache, for tests of what becomes of one."""

from __future__ import annotations

import os
from pathlib import Path

from dflash.compilation.parcels import wanted

KEY = {"torch": "2.13.0", "devices": "cpu, cpu", "graphs": "{}", "compiler": "g++ 12"}


def fill(cache: Path, *, dense: bool = False) -> Path:
    """Fill `cache`, also with what must not be kept."""
    for number in range(40):
        path = cache / "fxgraph" / f"{number % 7}" / f"entry{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number, 1]) * (1000 * number))
    program = cache / "triton" / "0" / "kernel.so"
    program.parent.mkdir(parents=True)
    program.write_bytes(os.urandom(300_000) if dense else b"\x7fELF" * 75_000)
    program.chmod(0o755)
    (cache / "empty").touch()
    (cache / "locks").mkdir()
    (cache / "locks" / "a.lock").touch()
    (cache / "fxgraph" / ".123.tmp").write_text("half-written")
    (cache / "tmp.pid_1_x").mkdir()
    (cache / "tmp.pid_1_x" / "part").touch()
    return cache


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of every file that is kept."""
    return {name: ((folder / name).stat().st_mode, (folder / name).read_bytes()) for name in wanted(folder)}
