"""Pre-warm: compile the closed set of graphs before training, then measure that nothing is left to compile.

Processes, one for each worker whose graphs are its own, compile at once into one cache. One more then sets up the
layout that will train, all workers, and must find every graph; where several hosts train, one after the other for each
host's layout, on this machine's GPUs. Only what was counted so is called warm: a cache folder that is there proves
nothing. A vault keeps what was proved, and gives it back to the next run that needs the same graphs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.atomic import aside
from dflash.compilation.cachekey import write_key
from dflash.compilation.holders import hold
from dflash.errors import CompilationError, DFlashError, OutOfMemory, UsageError
from dflash.progress import Progress
from dflash.training.graphset import GraphSet, Place
from dflash.training.report import first_input

if TYPE_CHECKING:  # a GPU image has no zstandard
    from dflash.compilation.vault import Snapshot, Vault

CACHE = "inductor"
_CPUS_EACH = 2
"""Processors that a compiling process has to itself, so that a host with many GPUs is not swamped."""


def use_cache(folder: Path) -> None:
    """Point this process, before it imports torch, and its children at the compile cache `folder`."""
    os.environ.update(cache_environment(folder))
    if folder.is_dir():
        hold(folder)


def cache_environment(folder: Path) -> dict[str, str]:
    """The environment that makes `folder` the compile cache. Never in /tmp, where a reboot loses it.

    Triton's part is named, too: torch else names it after the first GPU that a process compiles for, so that a process
    of one worker and one of all would look for the same kernel in different places.
    """
    here = folder.resolve()
    return {"TORCHINDUCTOR_CACHE_DIR": str(here), "TRITON_CACHE_DIR": str(here / "triton")}


def prewarm(graphs: GraphSet, out: Path, progress: Progress, vault: Vault | None = None) -> dict[str, Any]:
    """Warm `out/inductor` for `graphs` and prove it. The report: `graphs` found by the proof, `hit_rate`, seconds,
    `cache_bytes`, `snapshot`, and in `compiled` each graph that was made, with its worker and seconds.

    Raises:
        UsageError: this machine has fewer GPUs than one of the training's hosts has workers.
        OutOfMemory: a worker's GPU is too small.
        CompilationError: a process failed, or the proof found a graph that had to be compiled.
    """
    if not graphs.train.compile:
        progress.note("compilation is off: there is nothing to warm")
        return {"graphs": 0, "hit_rate": 1.0}
    cache = out / CACHE
    key = graphs.key()
    begun = time.monotonic()
    compiled: list[dict[str, Any]] = []
    snapshot = _restored(vault, key, cache, progress) if vault else None
    proof = _proof_of_kept(graphs, cache, progress) if snapshot else None
    if proof is None:
        snapshot, compiled = None, _compiled(graphs, cache, progress)
        compile_s, begun = time.monotonic() - begun, time.monotonic()
        proof = _proof(graphs, cache)
    else:
        compile_s = 0.0
    steps = len(graphs.places()) + 1
    progress.update(steps, steps)
    count = len(proof)
    write_key(cache, key, count)
    kept = snapshot or (_kept(vault, key, cache, count, progress) if vault else None)
    return {
        "graphs": count,
        "hit_rate": sum(not each["compiled"] for each in proof) / count,
        "compile_s": round(compile_s, 1),
        "proof_s": round(time.monotonic() - begun, 1),
        "compiled": compiled,
        "cache_bytes": sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()),
        "from_vault": snapshot is not None,
        "snapshot": kept.id if kept else None,
    }


class NotWarm(CompilationError):
    """Something was compiled that should have been found."""


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


def _compiled(graphs: GraphSet, cache: Path, progress: Progress) -> list[dict[str, Any]]:
    """Compile the graphs of all places at once, one process each; what was compiled, with seconds."""
    cache.mkdir(parents=True, exist_ok=True)
    places = graphs.places()
    gpus: dict[int, threading.Lock] = {each.number: threading.Lock() for each in places}
    at_once = min(len(gpus), max(2, (os.cpu_count() or 2) // _CPUS_EACH))
    threads = max(1, (os.cpu_count() or 2) // at_once)
    made: list[dict[str, Any]] = []
    done = 0

    def tell(graph: dict[str, Any]) -> None:
        if graph["compiled"]:
            made.append(graph)
            progress.note(f"{graph['worker']}: {graph['name']}, {graph['seconds']:.1f} s, {first_input(graph)}")

    def warm(place: Place, processes: _Processes) -> None:
        nonlocal done
        with gpus[place.number]:  # which has room for one worker: two of several hosts may have its number
            processes.warm_up(graphs, [place], threads, tell)
        done += 1
        progress.update(done, len(places) + 1)

    # In this order: an interrupt ends the processes first, and so the threads that wait for them.
    with ThreadPoolExecutor(at_once) as pool, _Processes(cache) as processes:
        for _ in pool.map(lambda place: warm(place, processes), places):
            pass
    return sorted(made, key=lambda graph: (graph["worker"], graph["name"], graph["inputs"]))


def _proof(graphs: GraphSet, cache: Path) -> list[dict[str, Any]]:
    """The graphs of a fresh process with the whole layout of a host, and so on for each, all of which were found in the
    cache.

    It compiles in itself, not in processes of its own, so that a kernel that Triton makes again is counted with its
    graph. That a C++ compiler made one shows in the folder alone.

    Raises:
        NotWarm: something was compiled.
        CompilationError: the process failed.
    """
    before = _kernels(cache)
    with _Processes(cache) as processes:
        found = [each for layout in graphs.layouts() for each in processes.warm_up(graphs, layout, threads=1)]
    missed = [f"{each['worker']}: {each['name']} for {each['inputs']}" for each in found if each["compiled"]]
    missed += [f"the kernel {name}" for name in sorted(_kernels(cache) - before)]
    if missed:
        raise NotWarm(
            f"a second process compiled again: {'; '.join(missed)}",
            where=str(cache),
            cure="run again; if it stays so, a graph depends on something that is not the same twice",
        )
    return found


def _proof_of_kept(graphs: GraphSet, cache: Path, progress: Progress) -> list[dict[str, Any]] | None:
    """As `_proof`, of a cache from the vault; None when it is not warm. One that breaks a process is moved aside."""
    try:
        return _proof(graphs, cache)
    except NotWarm as failure:
        progress.note(f"the kept cache is not warm: {failure.what}")
    except CompilationError as failure:
        progress.note(f"the kept cache is not used: {failure.what}")
        cache.rename(aside(cache))
    return None


def _kernels(cache: Path) -> set[str]:
    """What C++ compilers made."""
    return {str(path.relative_to(cache)) for path in cache.rglob("*.so")}


_RAISED = {kind.__name__: kind for kind in (OutOfMemory, UsageError)}


class _Processes:
    """Warm-up processes in front of one cache; none outlives the block."""

    def __init__(self, cache: Path) -> None:
        self._environment = os.environ | cache_environment(cache)
        self._running: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()
        self._failure: DFlashError | None = None

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *failure: object) -> None:
        self._end(CompilationError("the warm-up was given up"))

    def warm_up(
        self,
        graphs: GraphSet,
        places: Sequence[Place],
        threads: int,
        tell: Callable[[dict[str, Any]], None] = lambda graph: None,
    ) -> list[dict[str, Any]]:
        """Run one of the workers at `places`, with `threads` compile workers, telling of each graph; its graphs.

        Raises:
            UsageError, OutOfMemory: it can not run here, or another can not; all are ended then.
            CompilationError: it failed otherwise, or another did.
        """
        environment = self._environment | {"TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
        command = [sys.executable, "-m", "dflash.training.warmup"]
        with self._lock:
            if self._failure:
                raise self._failure
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                text=True,
                start_new_session=True,  # so that its compilers end with it
            )
            self._running.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        told: list[dict[str, Any]] = []
        with process.stdout, process.stdin:
            with contextlib.suppress(BrokenPipeError):  # it ended already: its status says why
                workers = [[each.rank, each.number] for each in places]
                process.stdin.write(json.dumps({"set": graphs.to_json(), "workers": workers}))
                process.stdin.close()
            for line in process.stdout:
                told.append(json.loads(line))
                if "name" in told[-1]:
                    tell(told[-1])
        if process.wait() or not told or "counts" not in told[-1]:
            why = (told and told[-1].get("error")) or f"it ended with status {process.returncode}"
            if failure := told and told[-1].get("failure"):
                kind, what, where, cure = failure
                self._end(_RAISED.get(kind, UsageError)(what, where=where, cure=cure))
            ranks = ", ".join(str(each.rank) for each in places)
            self._end(CompilationError(f"the warm-up of worker {ranks} failed: {why}"))
            assert self._failure is not None
            raise self._failure
        return told[:-1]

    def _end(self, why: DFlashError) -> None:
        """End all, and start no more. The first that failed is why: the others were ended for it."""
        with self._lock:
            self._failure = self._failure or why
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
