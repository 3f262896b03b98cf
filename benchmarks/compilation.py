"""`./inv bench compilation`: what the gate costs, the vault beside tar, zstd and cp, and a training's warm start.

The vault's cache is torch's own, that of a small training, made again and again with other bytes here and there, as
large as the one whose loss began this project. Whatever is compared runs in turn, so that both meet the same machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import zstandard

from benchmarks.train import BUCKETS, target_8b
from benchmarks.train import CONFIG as CONFIG_8B
from dflash.compilation.gate import CompileGate
from dflash.compilation.parcels import wanted
from dflash.compilation.vault import Vault
from dflash.model.bytelevel import byte_tokenizer
from dflash.training.graphset import GraphSet
from dflash.training.prewarm import cache_environment, use_cache
from tests.tiny import new_target
from tests.training.small import CONFIG, as_json

REPOSITORY = Path(__file__).parents[1]
BYTES = 353_000_000
CALLS, BLOCKS = 20, 4000
ROUNDS = 5
STARTS = 3
KEY = {"made by": "bench compilation"}


def measure() -> dict[str, float]:
    """Medians, and what was compared to get at them.

    `gate_us`: microseconds that a call through a sealed gate costs beyond a call of the bare compiled function.
    `save_ratio`: the vault's save against `tar | zstd -T0`, both of the same 353 MB; `restore_ratio`: its restore
    against `cp -a`. `cold_start_s`: from the start of a training's process to the end of its first step, everything
    compiled on the way; `warm_start_s`: the same with the cache taken from the vault first; `cached_start_s`: with the
    cache in its place, and in the page cache. `gpu_…` where there are two: see `on_gpus`. Takes 4 GB of disk meanwhile.
    """
    with tempfile.TemporaryDirectory(prefix="dflash-bench-", dir=Path.home()) as name:
        root = Path(name)
        use_cache(root / "gate")
        gate = _gate()
        starts, cache = _starts(root)
        gpus = on_gpus(root) if torch.cuda.device_count() >= 2 else {}
        return {**gate, **_vault(root, cache), **starts, **gpus}


# --- the gate


def _increment(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _gate() -> dict[str, float]:
    """Blocks of calls, one bare, one gated, each so short that most are not interrupted on a busy machine. Bare is as
    torch is by default: what the seal's stance costs is of the gate."""
    _say("the gate")
    gate, x = CompileGate(), torch.zeros(8)
    bare = torch.compile(_increment, fullgraph=True, dynamic=False)
    gated = gate.compile(_increment, name="increment")
    with gate.turn():
        gated(x)
    times: dict[str, list[float]] = {"bare": [], "gated": []}
    for _ in range(BLOCKS):
        times["bare"].append(_each_us(bare, x))
        with gate.sealed():
            times["gated"].append(_each_us(gated, x))
    bare_us, gated_us = (statistics.median(times[name]) for name in ("bare", "gated"))
    return {"gate_us": round(gated_us - bare_us, 2), "bare_us": round(bare_us, 2)}


def _each_us(function: Callable[[torch.Tensor], object], x: torch.Tensor) -> float:
    function(x)
    begun = time.perf_counter()
    for _ in range(CALLS):
        function(x)
    return (time.perf_counter() - begun) / CALLS * 1e6


# --- a training's start


def _starts(root: Path) -> tuple[dict[str, float], Path]:
    """The figures, and the cache that the cold start left."""
    target, cache = root / "target", root / "inductor"
    new_target().to(torch.float32).save_pretrained(target)
    byte_tokenizer().save_pretrained(target)
    vault = Vault(root / "vault", root / "secret" / "key")
    _say("a cold start")
    cold = _first_step_s(target, root / "out-cold", cache)
    vault.save(cache, KEY, {}, graphs=0)
    cached, warm = [], []
    for number in range(STARTS):
        _say(f"a cached and a warm start, {number + 1} of {STARTS}")
        cached.append(_first_step_s(target, root / f"out-cached{number}", cache))
        begun, place = time.monotonic(), root / f"restored{number}"
        found = vault.find(KEY)
        assert found is not None
        vault.restore(found.id, place)
        restored = time.monotonic() - begun
        warm.append(restored + _first_step_s(target, root / f"out-warm{number}", place))
    figures = {
        "warm_start_s": round(statistics.median(warm), 2),
        "cached_start_s": round(statistics.median(cached), 2),
        "cold_start_s": round(cold, 1),
    }
    return figures, cache


def _first_step_s(target: Path, out: Path, cache: Path) -> float:
    """Seconds from the start of a training in a process of its own to its first step. It trains to its end, untimed."""
    config = as_json(replace(CONFIG, compile=True, steps=2, checkpoint_every=2))
    command = [sys.executable, "-m", "tests.training.small", str(target), str(out), "[48]", config]
    environment = os.environ | cache_environment(cache)
    with tempfile.TemporaryFile("w+") as said:
        begun = time.monotonic()
        with subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=said, text=True
        ) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            seconds = time.monotonic() - begun
            process.stdout.read()
        if process.returncode or first != "1\n":
            said.seek(0)
            raise RuntimeError(f"the training ended with status {process.returncode}: {said.read()[-3000:]}")
    return seconds


def on_gpus(root: Path) -> dict[str, float]:
    """The same starts in the shapes of the paper's drafter for a target of 8 billion parameters, on two GPUs, until
    every worker could take its first step: three buckets, two rows, block 16, 512 anchors, bfloat16, weights that are
    nothing."""
    graphs = GraphSet.of(CONFIG_8B, target_8b(), BUCKETS)
    cache, vault = root / "gpu-inductor", Vault(root / "gpu-vault", root / "secret" / "key")
    _say("a cold start on GPUs")
    cold = _all_warm_s(graphs, cache)
    kept = vault.save(cache, KEY, {}, graphs=0)
    cached, warm = [], []
    for number in range(STARTS):
        _say(f"a cached and a warm start on GPUs, {number + 1} of {STARTS}")
        cached.append(_all_warm_s(graphs, cache))
        begun, place = time.monotonic(), root / f"gpu-restored{number}"
        vault.restore(kept.id, place)
        restored = time.monotonic() - begun
        warm.append(restored + _all_warm_s(graphs, place))
    return {
        "gpu_cold_start_s": round(cold, 1),
        "gpu_cached_start_s": round(statistics.median(cached), 2),
        "gpu_warm_start_s": round(statistics.median(warm), 2),
    }


def _all_warm_s(graphs: GraphSet, cache: Path) -> float:
    """Seconds from the start of a process to the end of all its workers' turns."""
    environment = os.environ | cache_environment(cache)
    begun = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "dflash.training.warmup"],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        json.dump(
            {"set": graphs.to_json(), "workers": [[each, each] for each in range(graphs.train.topology.size)]},
            process.stdin,
        )
        process.stdin.close()
        for line in process.stdout:
            if "counts" in json.loads(line):
                return time.monotonic() - begun
    raise RuntimeError(f"the warm-up ended with status {process.returncode}")


# --- the vault


def _vault(root: Path, seed: Path) -> dict[str, float]:
    """Nothing is deleted before the end: ext4 gives no inode again for minutes, and looks at each that it passes over,
    so that the next to make files pays several times what they cost, whoever it is."""
    _say(f"a cache of {BYTES / 1e6:.0f} MB")
    cache = root / "large"
    count, size = _grown(seed, cache)
    times: dict[str, list[float]] = {"save": [], "tar": [], "restore": [], "cp": []}
    for number in range(ROUNDS):
        _say(f"the vault, {number + 1} of {ROUNDS}")
        vault = Vault(root / f"vault{number}", root / "secret" / "key")
        saving: dict[str, Callable[[], object]] = {
            "save": partial(vault.save, cache, KEY, {}, graphs=0),
            "tar": partial(_tar_zstd, cache, root / "cache.tar.zst"),
        }
        _timed(saving, times, number)
        (kept,) = vault.listed()
        restoring: dict[str, Callable[[], object]] = {
            "restore": partial(vault.restore, kept.id, root / f"restored-large{number}"),
            "cp": partial(subprocess.run, ["cp", "-a", str(cache), str(root / f"copied{number}")], check=True),
        }
        _timed(restoring, times, number)
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "save_ratio": round(median["save"] / median["tar"], 2),
        "restore_ratio": round(median["restore"] / median["cp"], 2),
        "save_s": round(median["save"], 2),
        "tar_zstd_s": round(median["tar"], 2),
        "restore_s": round(median["restore"], 2),
        "cp_s": round(median["cp"], 2),
        "cache_mb": round(size / 1e6, 1),
        "cache_files": count,
    }


def _timed(bodies: dict[str, Callable[[], object]], times: dict[str, list[float]], number: int) -> None:
    """Every second time the other way round: who comes first may find a disk that is still busy."""
    for name in list(bodies)[:: -1 if number % 2 else 1]:
        os.sync()  # what is still being written would slow what is measured
        begun = time.monotonic()
        bodies[name]()
        times[name].append(time.monotonic() - begun)


def _tar_zstd(cache: Path, archive: Path) -> None:
    """`tar | zstd -T0`, at zstd's default level, which is the vault's. Without that program, with its library."""
    with (
        archive.open("wb") as out,
        subprocess.Popen(["tar", "-c", "-C", str(cache), "."], stdout=subprocess.PIPE) as tar,
    ):
        assert tar.stdout is not None
        if shutil.which("zstd"):
            subprocess.run(["zstd", "-q", "-T0"], stdin=tar.stdout, stdout=out, check=True)
        else:
            zstandard.ZstdCompressor(level=3, threads=-1).copy_stream(tar.stdout, out)
    if tar.returncode:
        raise RuntimeError(f"tar ended with status {tar.returncode}")


def _grown(seed: Path, cache: Path) -> tuple[int, int]:
    """Make `cache` of copies of the files of `seed`; how many files and bytes it has.

    16 other letters every 700 bytes, and a large cache is compressed as well as the small one that it is made from
    (14 times): less, and copies in one parcel would compress each other; more, and none would compress itself.
    """
    made, files, copy, source = 0, 0, 0, random.Random(0)
    while made < BYTES:
        for name in wanted(seed):
            content = bytearray((seed / name).read_bytes())
            for start in range(0, len(content) - 16, 700):
                content[start : start + 16] = source.randbytes(8).hex().encode()
            mark = hashlib.sha256(f"{copy} {name}".encode()).hexdigest()
            *above, _, last = name.split("/")  # torch's folders are the first two characters of a hash
            path = cache.joinpath(*above, mark[:2], f"{mark}{''.join(Path(last).suffixes)}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod((seed / name).stat().st_mode)
            made, files = made + len(content), files + 1
            if made >= BYTES:
                break
        copy += 1
    return files, made


def _say(what: str) -> None:
    print(f"bench compilation: {what}", file=sys.stderr, flush=True)
