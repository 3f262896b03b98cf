"""How much memory a run holds: the resident sizes of the runner and of every process below it, summed."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

import psutil

_INTERVAL_S = 0.5
_CGROUPS = Path("/sys/fs/cgroup")


def oom_kills(groups: str | None = None, below: Path = _CGROUPS) -> int:
    """How many processes of this one's control group the kernel has killed for want of memory; 0 where that can not be
    told. `groups` is /proc/self/cgroup."""
    with contextlib.suppress(OSError, ValueError):
        text = Path("/proc/self/cgroup").read_text() if groups is None else groups
        for line in text.splitlines():
            _, controllers, path = line.split(":", 2)
            folder = below / "memory" if controllers else below
            if controllers and "memory" not in controllers.split(","):
                continue
            for place in (folder / path.lstrip("/"), folder):  # in a container the group's own is the root
                for name in ("memory.events", "memory.oom_control"):
                    with contextlib.suppress(OSError):
                        if found := re.search(r"^oom_kill (\d+)$", (place / name).read_text(), re.MULTILINE):
                            return int(found[1])
    return 0


class Memory:
    """Peaks in MB (10^6 bytes), of the run and of the step at work. Shared pages count once a process."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._last = 0.0
        self.peak_mb = 0.0
        self.step_mb = 0.0

    def new_step(self) -> None:
        """Start the step's peak anew."""
        self.step_mb = 0.0
        self._last = 0.0

    def sample(self) -> None:
        """Look, unless that was done less than half a second ago."""
        now = time.monotonic()
        if now - self._last < _INTERVAL_S:
            return
        self._last = now
        steps = _resident(self._process.children(recursive=True))
        self.step_mb = max(self.step_mb, round(steps / 1e6, 1))
        self.peak_mb = max(self.peak_mb, round((steps + _resident([self._process])) / 1e6, 1))


def _resident(processes: list[psutil.Process]) -> int:
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total
