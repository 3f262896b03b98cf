"""How soon the report of a long training opens: its rows written as a training writes them, then its page made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dflash.training.metriclog import MetricLog
from dflash.training.sampling import samples_beside
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
    cost to make and write a row."""
    with tempfile.TemporaryDirectory(prefix="dflash-bench-", dir=Path.home()) as name:
        root = Path(name)
        for folder in (root / "runs" / _RUN, root / str(_STEP["folder"])):
            folder.mkdir(parents=True)
        (root / "runs" / _RUN / "record.json").write_text(json.dumps(_RECORD))
        log = root / str(_STEP["folder"]) / "metrics.jsonl"
        begun = time.monotonic()
        _write(log, rows)
        written = time.monotonic() - begun
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
            "write_us": round(written / rows * 1e6, 1),
        }


def _write(path: Path, rows: int) -> None:
    log = MetricLog(path, 0)
    for step in range(1, rows + 1):
        noise = (step * 2_654_435_761 % 2**32) / 2**32
        accuracy = [round((0.9 - 0.05 * place) * (1 - noise / 4), 4) for place in range(7)]
        row: dict[str, Any] = {"step": step, "loss": 1 + 5 / step**0.3 + noise, "accuracy": accuracy}
        row |= {"accept_len": 6 - 4 / step**0.2 + noise, "grad_norm": 0.3 + noise, "lr": 6e-4 * (1 - step / rows)}
        row |= {"tokens_per_s": 250_000.0}
        log.write(row)
    log.close()


def _note(folder: Path, rows: int) -> None:
    """What each worker noted of itself: the same of all, as links, since only the reading counts."""
    first, *others = (log_of(folder, rank) for rank in range(8))
    log = MetricLog(first, 0)
    for step in range(1, rows + 1):
        noise = (step * 2_654_435_761 % 2**32) / 2**32
        log.write({"step": step, "role": "target", "busy_s": 0.2 + noise / 50, "step_s": 0.25, "gpu_gb": 61.5})
    log.close()
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
