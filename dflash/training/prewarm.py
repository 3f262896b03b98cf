"""Pre-warm: compile the closed set of graphs before training, then measure that nothing is left to compile.

Two processes, one a role, compile at once into one cache. A third then sets up the layout that will train, all
workers, and must find every graph. Only what it counted is called warm: a cache folder that is there proves
nothing. A vault keeps what was proved, and gives it back to the next run that needs the same graphs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from dflash.errors import CompilationError, DFlashError
from dflash.progress import Progress

if TYPE_CHECKING:  # a GPU image has no zstandard
    from dflash.compilation.vault import Snapshot, Vault

ROLES = ("target", "drafter")
CACHE = "inductor"


def use_cache(folder: Path) -> None:
    """Point this process, before it imports torch, and its children at the compile cache `folder`."""
    os.environ.update(cache_environment(folder))


def cache_environment(folder: Path) -> dict[str, str]:
    """The environment that makes `folder` the compile cache. Never in /tmp, where a reboot loses it."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder.resolve())}


def prewarm(request: Mapping[str, Any], out: Path, progress: Progress, vault: Vault | None = None) -> dict[str, Any]:
    """Warm `out/inductor` for `request` (see `dflash.training.warmup`) and prove it; the report.

    Raises:
        CompilationError: a process failed, or the proof found a graph that had to be compiled.
    """
    if not request["config"]["compile"]:
        progress.note("compilation is off: there is nothing to warm")
        return {"graphs": 0, "hit_rate": 1.0}
    cache = out / CACHE
    key = graph_key(request) if vault else {}
    begun = time.monotonic()
    snapshot = _restored(vault, key, cache, progress) if vault else None
    roles = {} if snapshot else _compiled(request, cache, progress)
    compile_s = time.monotonic() - begun
    progress.update(1, 2)
    begun = time.monotonic()
    proof = _proof(request, cache)
    if snapshot and proof["hit_rate"] != 1.0:
        progress.note("the kept cache lacks a graph: compiling it")
        snapshot, roles = None, _compiled(request, cache, progress)
        proof = _proof(request, cache)
    if proof["hit_rate"] != 1.0:
        raise CompilationError(
            f"a second pass compiled again: {json.dumps(proof['counts'])}",
            where=str(cache),
            cure="run again; if it stays so, a graph depends on something that is not the same twice",
        )
    proof_s = time.monotonic() - begun
    progress.update(2, 2)
    kept = snapshot or (_kept(vault, key, cache, proof["graphs"], progress) if vault else None)
    return {
        "graphs": proof["graphs"],
        "hit_rate": proof["hit_rate"],
        "compile_s": round(compile_s, 1),
        "proof_s": round(proof_s, 1),
        "roles": roles,
        "cache_bytes": sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()),
        "from_vault": snapshot is not None,
        "snapshot": kept.id if kept else None,
    }


def graph_key(request: Mapping[str, Any]) -> dict[str, str]:
    """The vault's key of a request: everything that shapes its graphs, and nothing that only steers the training."""
    from dflash.compilation.ingredients import ingredients

    config = request["config"]
    shapes = {name: config[name] for name in ("draft", "topology", "rows", "anchors", "device")}
    with safe_open(request["rows"], "pt") as rows:
        shapes["buckets"] = sorted({int(name.partition("/")[0]) for name in rows.keys()})  # noqa: SIM118 - no mapping
    shapes["target"] = json.loads((Path(request["target"]) / "config.json").read_text())
    room, model = Path(__file__).parent, Path(__file__).parents[1] / "model"
    gate = Path(__file__).parents[1] / "compilation" / "gate.py"
    graphs = [room / f"{name}.py" for name in ("batches", "drafts", "regions", "workers")]
    return ingredients(shapes, [*graphs, *model.glob("*.py"), gate], _devices(config))


def _devices(config: Mapping[str, Any]) -> list[str]:
    """The ordered map from worker to device: inductor's own key holds the index."""
    count = config["topology"]["targets"] + config["topology"]["drafters"]
    if config["device"] == "cpu":
        return ["cpu"] * count
    import torch

    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [f"cuda:{index} {each.name} {each.major}.{each.minor}" for index, each in enumerate(found[:count])]


def _restored(vault: Vault, key: Mapping[str, str], cache: Path, progress: Progress) -> Snapshot | None:
    """The cache from the vault, when it has one and nothing was compiled here before."""
    if cache.exists() and any(cache.iterdir()):
        return None
    try:
        found = vault.find(key)
        if found is None:
            progress.note(f"no kept cache fits: {'; '.join(vault.why_not(key))[:300]}")
            return None
        vault.restore(found.id, cache)
    except DFlashError as failure:
        progress.note(f"the kept cache is not used: {failure}")
        return None
    progress.note(f"took {found.graphs} graphs, {found.bytes:,} bytes, from snapshot {found.id}")
    return found


def _kept(vault: Vault, key: Mapping[str, str], cache: Path, graphs: int, progress: Progress) -> Snapshot | None:
    """Keep a proved cache. That it can not be kept stops no training."""
    from dflash.compilation.ingredients import recorded

    try:
        return vault.save(cache, key, recorded(cache), graphs)
    except DFlashError as failure:
        progress.note(f"the cache is not kept: {failure}")
        return None


def _compiled(request: Mapping[str, Any], cache: Path, progress: Progress) -> dict[str, Any]:
    """Compile each role in a process of its own, at once; seconds of each worker by role."""
    cache.mkdir(parents=True, exist_ok=True)
    reports = _run_all([{**request, "roles": [role]} for role in ROLES], cache, threads=1)
    for role, report in zip(ROLES, reports, strict=True):
        progress.note(f"{role}: {report['graphs']} graphs in {report['seconds']:.1f} s")
    return {role: report["warm_s"] for role, report in zip(ROLES, reports, strict=True)}


def _proof(request: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """What a fresh process with the whole layout found in the cache."""
    (proof,) = _run_all([{**request, "roles": list(ROLES)}], cache, threads=0)
    return proof


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
