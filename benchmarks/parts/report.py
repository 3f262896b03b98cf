"""How soon the report of a long training opens: the log of one is written, then its page made.

Only the first rows are written as a training writes them, each by itself, which is timed. The others are the same, and
so are the buckets beside them, but come many at once: ten million of the former would take most of an hour on a machine
with other work to do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dflash.training.metriclog import MetricLog
from dflash.training.sampling import Sampler, kept_buckets, rows_from, samples_beside
from dflash.training.usage import USAGE, log_of

_HOME = Path(__file__).parents[2]
_RUN = "20261130T000000-long"
_STEP: dict[str, Any] = {"name": "train", "kind": "train", "status": "ok", "seconds": 36_000.0, "peak_rss_mb": 0.0}
_STEP |= {"why": [], "result": None, "error": None, "folder": "work/train/0000000000000000"}
_RECORD = {"id": _RUN, "pipeline": "long", "host": "local", "status": "ok", "started": "2026-11-30T00:00:00Z"}
_RECORD |= {"wall_s": 36_000.0, "peak_rss_mb": 0.0, "acceptance_length": None, "steps": [_STEP]}


def report(rows: int = 10_000_000) -> dict[str, float]:
    """`seconds`: `./inv report`, as a process of its own, of a run whose training of eight workers logged `rows` rows,
    and each worker as many; `peak_mb`, the memory that took; `page_mb` and `log_gb`, the sizes; `write_us`, what it
    cost a training to write a row, and `write_cpu_us`, how much of that was its own processor time."""
    with tempfile.TemporaryDirectory(prefix="dflash-bench-", dir=Path.home()) as name:
        root = Path(name)
        for folder in (root / "runs" / _RUN, root / str(_STEP["folder"])):
            folder.mkdir(parents=True)
        (root / "runs" / _RUN / "record.json").write_text(json.dumps(_RECORD))
        log = root / str(_STEP["folder"]) / "metrics.jsonl"
        write_us, write_cpu_us = write_log(log, rows)
        _note(log.with_name(USAGE), rows)
        begun = time.monotonic()
        peak_mb = _open(root)
        seconds = time.monotonic() - begun
        page = root / "runs" / _RUN / "report.html"
        return {
            "seconds": round(seconds, 2),
            "peak_mb": round(peak_mb, 1),
            "page_mb": round(page.stat().st_size / 1e6, 2),
            "log_gb": round(log.stat().st_size / 1e9, 2),
            "write_us": round(write_us, 1),
            "write_cpu_us": round(write_cpu_us, 1),
        }


def write_log(path: Path, rows: int, timed: int = 100_000) -> tuple[float, float]:
    """Write a log of `rows` rows; microseconds, and of processor time, that each of the first `timed` took."""
    timed = min(rows, timed)
    made = [_row(step, rows) for step in range(1, timed + 1)]
    log = MetricLog(path, 0)
    begun, busy = time.perf_counter(), time.process_time()
    for row in made:
        log.write(row)
    took, worked = time.perf_counter() - begun, time.process_time() - busy
    log.close()
    _lengthen(path, timed, rows, _row)
    return took / timed * 1e6, worked / timed * 1e6


def _lengthen(path: Path, done: int, rows: int, made: Callable[[int, int], dict[str, Any]]) -> None:
    """Go on to `rows` rows, as `made`. Each is written out once for the thousand after it: what differs is the step."""
    sampler = Sampler(kept_buckets(path))
    for row, end in rows_from(path, sampler.end):
        sampler.take(row, end)
    end = sampler.end
    with path.open("ab") as log:
        for first in range(done + 1, rows + 1, _ALIKE):
            row = made(first, rows)
            _, _, rest = json.dumps(row).partition(", ")
            for step in range(first, min(first + _ALIKE, rows + 1)):
                row["step"] = step
                end += log.write(f'{{"step": {step}, {rest}\n'.encode())
                sampler.take(row, end)
    samples_beside(path).write_text("".join(each.as_line() for each in sampler.full), encoding="utf-8")


_ALIKE = 1000


def _row(step: int, rows: int) -> dict[str, Any]:
    noise = (step * 2_654_435_761 % 2**32) / 2**32
    accuracy = [round((0.9 - 0.05 * place) * (1 - noise / 4), 4) for place in range(7)]
    row: dict[str, Any] = {"step": step, "loss": 1 + 5 / step**0.3 + noise, "accuracy": accuracy}
    row |= {"accept_len": 6 - 4 / step**0.2 + noise, "grad_norm": 0.3 + noise, "lr": 6e-4 * (1 - step / rows)}
    return row | {"tokens_per_s": 250_000.0}


def _noted(step: int, rows: int) -> dict[str, Any]:
    noise = (step * 2_654_435_761 % 2**32) / 2**32
    return {"step": step, "role": "target", "busy_s": 0.2 + noise / 50, "step_s": 0.25, "gpu_gb": 61.5}


def _note(folder: Path, rows: int) -> None:
    """What each worker noted of itself: the same of all, as links, since only the reading counts."""
    first, *others = (log_of(folder, rank) for rank in range(8))
    MetricLog(first, 0).close()
    _lengthen(first, 0, rows, _noted)
    for other in others:
        os.link(first, other)
        os.link(samples_beside(first), samples_beside(other))


def _open(root: Path) -> float:
    """Make the report, as `./inv report` does; the peak memory of that process in MB."""
    words = [sys.executable, "-B", "-m", "dflash", "report", _RUN, "--root", str(root)]
    with subprocess.Popen(words, cwd=_HOME, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the report ended with status {process.returncode}")
    return usage.ru_maxrss / 1000
