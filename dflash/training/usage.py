"""`usage/RANK.jsonl`: what each worker of a training notes of itself, a row a step, by nobody but itself.

Like `metrics.jsonl` a log with its samples beside it, so that nothing but the standard library is needed to read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash.training.metriclog import MetricLog
from dflash.training.sampling import Bucket, Samples, load_samples, samples_beside

USAGE = "usage"
"""The folder of these logs, in a training's own."""


@dataclass(frozen=True)
class Worker:
    """A worker by its number, its role as of its last row, and what it noted."""

    rank: int
    role: str
    samples: Samples

    @property
    def busy(self) -> float | None:
        """The share of all its time, 0 to 1, in which its device computed."""
        return share_of(self.samples.buckets)

    @property
    def peak_gb(self) -> float | None:
        """The most that it had of its GPU, in GB of 10^9 bytes; None on a CPU."""
        return peak_of(self.samples.buckets)


def share_of(buckets: Iterable[Bucket]) -> float | None:
    """How much of the time of some rows was computing; None without any time. A mean of the rows' own shares would take
    a step that stood still for as long as any other."""
    busy = whole = 0.0
    for each in buckets:
        if "busy_s" in each.figures and "step_s" in each.figures:
            busy, whole = busy + each.figures["busy_s"].total, whole + each.figures["step_s"].total
    return min(busy / whole, 1.0) if whole > 0 else None


def peak_of(buckets: Iterable[Bucket]) -> float | None:
    """The most memory of some rows, as `Worker.peak_gb`."""
    return max((each.figures["gpu_gb"].most for each in buckets if "gpu_gb" in each.figures), default=None)


def log_of(folder: Path, rank: int) -> Path:
    """Where a worker notes, in the `folder` of a training's usage."""
    return folder / f"{rank}.jsonl"


def logs_in(folder: Path) -> dict[int, Path]:
    """The logs in a folder, by rank; none where there is no folder."""
    return {int(path.stem): path for path in sorted(folder.glob("*.jsonl")) if path.stem.isdecimal()}


def files_of(folder: Path, ranks: Iterable[int]) -> list[str]:
    """The names of the files in a folder that are of `ranks`."""
    logs = [log_of(folder, rank) for rank in ranks]
    return [file.name for log in logs for file in (log, samples_beside(log)) if file.exists()]


def drop_after(folder: Path, step: int, workers: int) -> None:
    """Drop the rows after `step` of those that are not among so many `workers` any more: what they did of later steps
    is done again by others. Raises OSError, StorageError."""
    for rank, log in logs_in(folder).items():
        if rank >= workers:
            MetricLog(log, step).close()


def workers_in(folder: Path, until: int | None = None) -> list[Worker]:
    """The workers of which a folder has rows, up to the step `until` if there is one, in order. Raises StorageError."""
    found = [(rank, load_samples(log, until)) for rank, log in sorted(logs_in(folder).items())]
    return [Worker(rank, str(samples.last.get("role", "")), samples) for rank, samples in found if samples]


def busy_by_role(workers: Iterable[Worker]) -> dict[str, float]:
    """How busy the workers of each role were: the share of the time of all of them, so that one that is no more weighs
    as little as it was there."""
    rows: dict[str, list[Bucket]] = {}
    for each in workers:
        rows.setdefault(each.role, []).extend(each.samples.buckets)
    return {role: share for role, found in rows.items() if (share := share_of(found)) is not None}


def noun(role: str) -> str:
    """What one of a role is called: who does both is a worker, as there are no others."""
    return "worker" if role == "target and drafter" else role


def in_words(shares: Mapping[str, float]) -> str:
    """`targets 82%, drafters 100%`."""
    return ", ".join(f"{noun(role)}s {share:.0%}" for role, share in shares.items())
