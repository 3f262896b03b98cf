"""Pre-warm: compile the closed set of graphs before training, then measure that nothing is left to compile.

Two processes, one a role, compile at once into one cache. A third then sets up the layout that will train, all
workers, and must find every graph. Only what it counted is called warm: a cache folder that is there proves
nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash.errors import CompilationError
from dflash.progress import Progress

ROLES = ("target", "drafter")
CACHE = "inductor"


def use_cache(folder: Path) -> None:
    """Point this process, before it imports torch, and its children at the compile cache `folder`."""
    os.environ.update(cache_environment(folder))


def cache_environment(folder: Path) -> dict[str, str]:
    """The environment that makes `folder` the compile cache. Never in /tmp, where a reboot loses it."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder.resolve())}


def prewarm(request: Mapping[str, Any], out: Path, progress: Progress) -> dict[str, Any]:
    """Warm `out/inductor` for `request` (see `dflash.training.warmup`) and prove it; the report.

    Raises:
        CompilationError: a process failed, or the proof found a graph that had to be compiled.
    """
    if not request["config"]["compile"]:
        progress.note("compilation is off: there is nothing to warm")
        return {"graphs": 0, "hit_rate": 1.0}
    cache = out / CACHE
    cache.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    compiled = _run_all([{**request, "roles": [role]} for role in ROLES], cache, threads=1)
    for role, report in zip(ROLES, compiled, strict=True):
        progress.note(f"{role}: {report['graphs']} graphs in {report['seconds']:.1f} s")
    compile_s = time.monotonic() - begun
    progress.update(1, 2)
    begun = time.monotonic()
    (proof,) = _run_all([{**request, "roles": list(ROLES)}], cache, threads=0)
    progress.update(2, 2)
    if proof["hit_rate"] != 1.0:
        raise CompilationError(
            f"a second pass compiled again: {json.dumps(proof['counts'])}",
            where=str(cache),
            cure="run again; if it stays so, a graph depends on something that is not the same twice",
        )
    return {
        "graphs": proof["graphs"],
        "hit_rate": proof["hit_rate"],
        "compile_s": round(compile_s, 1),
        "proof_s": round(time.monotonic() - begun, 1),
        "roles": {role: report["warm_s"] for role, report in zip(ROLES, compiled, strict=True)},
        "cache_bytes": sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()),
    }


def _run_all(requests: Sequence[Mapping[str, Any]], cache: Path, threads: int) -> list[dict[str, Any]]:
    """Run warm-up processes at once, each with `threads` compile workers (0: torch's default); their reports."""
    environment = os.environ | cache_environment(cache)
    if threads:
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
    command = [sys.executable, "-m", "dflash.training.warmup"]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
        for _ in requests
    ]
    try:
        for process, request in zip(running, requests, strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps(request))
            process.stdin.close()
        reports = []
        for process, request in zip(running, requests, strict=True):
            assert process.stdout is not None
            answer = process.stdout.read()
            if process.wait():
                raise CompilationError(
                    f"the warm-up of {' and '.join(request['roles'])} ended with status {process.returncode}",
                    cure="its output is in this step's log",
                )
            reports.append(json.loads(answer.splitlines()[-1]))
        return reports
    finally:
        for process in running:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()
