"""A folder in the shape of a compile cache, for tests of what becomes of one; and an environment that runs them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dflash.compilation.parcels import wanted
from dflash.compilation.signing import Signer

KEY = {"torch": "2.13.0", "devices": "cpu, cpu", "graphs": "{}", "compiler": "g++ 12"}


def fill(cache: Path, *, dense: bool = False) -> Path:
    """Fill `cache`, also with what must not be kept."""
    for number in range(40):
        path = cache / "fxgraph" / f"{number % 7}" / f"entry{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number, 1]) * (1000 * number))
    program = cache / "qz" / "cqzkernel.so"
    program.parent.mkdir(parents=True)
    program.write_bytes(os.urandom(300_000) if dense else b"\x7fELF" * 75_000)
    program.chmod(0o755)
    (cache / "empty").touch()
    (cache / "locks").mkdir()
    (cache / "locks" / "a.lock").touch()
    (cache / "fxgraph" / ".123.tmp").write_text("half-written")
    (cache / "tmp.pid_1_x").mkdir()
    (cache / "tmp.pid_1_x" / "part").touch()
    kernel = cache / "triton" / "A5XQ" / "__grp__add.json"
    kernel.parent.mkdir(parents=True)
    launcher = cache / "triton" / "7QLC" / "__triton_launcher.so"
    launcher.parent.mkdir()
    launcher.write_bytes(b"\x7fELF")
    kernel.write_text(json.dumps({"child_paths": {"add.cubin": str(kernel.with_name("add.cubin"))}}))
    return cache


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of every file that is kept."""
    return {name: ((folder / name).stat().st_mode, (folder / name).read_bytes()) for name in wanted(folder)}


def environment(root: Path, name: str, **variables: str) -> None:
    """An environment in use below `root`: its Python is ours, and has the variables that a login there would set."""
    place = root / "envs" / name / "0123456789abcdef"
    (place / "bin").mkdir(parents=True)
    exports = "".join(f"export {each}={value}\n" for each, value in variables.items())
    if "DFLASH_VAULT_KEY" in variables:  # who names one has made it
        Signer(Path(variables["DFLASH_VAULT_KEY"])).sign(b"")
    (place / "bin" / "python").write_text(f'#!/bin/sh\n{exports}exec {sys.executable} "$@"\n')
    (place / "bin" / "python").chmod(0o755)
    (place / "dflash-record.json").write_text(json.dumps({"lock": "0", "python": "3.11", "made": 0.0, "files": {}}))
    (root / "envs" / name / "current").symlink_to(place.name)
