"""Which part of a training's log a run has written. A training that was interrupted, and that another run went on
with, has one log, in its step's folder: whoever goes on writes there, and again what came after the last checkpoint."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.errors import storage_error
from dflash.pipeline.record import is_run, order
from dflash.pipeline.store import parts_of


@dataclass(frozen=True)
class Share:
    """Of a log, the steps after `first` up to `last` (None: to its end) are the run's own. Those up to `first` are of
    the run `before`, and of those that it went on with, if `is_longer`; those after `last` of the run `after`, of which
    there is a report if `is_there`, or of a later one.

    What a run shows ends with its share, but begins with the training: what it made comes from all of it.
    """

    first: int = 0
    before: str | None = None
    is_longer: bool = False
    last: int | None = None
    after: str | None = None
    is_there: bool = False

    def __str__(self) -> str:
        """In sentences, if there is anything to say."""
        said = []
        if self.first and self.before:
            steps = f"Steps 1 to {self.first:,} were" if self.first > 1 else "Step 1 was"
            others = " and those that it went on with" if self.is_longer else ""
            said.append(f"{steps} done before, by run {self.before}{others}.")
        if self.after and self.last:
            report = ", and is in its report" if self.is_there else ""
            said.append(f"The log after step {self.last:,} is of run {self.after}, which went on from there{report}.")
        elif self.after:
            report = "; the log is in its report" if self.is_there else ""
            said.append(f"Run {self.after} began it anew, in the same folder{report}.")
        return " ".join(said)


def own_share(root: Path, record: Mapping[str, Any], step: Mapping[str, Any], log: Path) -> Share:
    """A run's share in the `log` of its training `step`. One that found the training made has none, and shows all of
    it; one that came to no step of it has none, either, and shows nothing, though others may have trained in that
    folder. What was fetched is the run's own, whoever went on elsewhere. Raises StorageError."""
    if step["status"] == "skipped":
        return Share()
    run, is_here = record["id"], log.parent == root / step["folder"]
    parts = _parts(root / step["folder"]) if is_here else []
    names = [name for name, _ in parts]
    at = names.index(run) if run in names else sum(order(name) < order(run) for name in names)
    first = parts[at][1] if run in names else _told(root, run, step)
    if first is None:
        return Share(last=0)
    earlier = _contributing(parts[:at], first)
    later = [(after, name) for name, after in reversed(parts[at:]) if name != run]  # the newest has written last
    last, after = min(later, key=lambda part: part[0], default=(None, None))
    before = earlier[0] if earlier else step.get("resumes")
    return Share(first, before, len(earlier) > 1, last, after, after is not None and is_run(root, after))


def _parts(folder: Path) -> list[tuple[str, int]]:
    """The runs that have written the log in a step's folder, one after the other, and after which step each began."""
    try:
        return [(run, max(0, done - 1)) for run, done in parts_of(folder).items()]
    except OSError as failure:
        raise storage_error(failure, folder) from failure


def _contributing(parts: Sequence[tuple[str, int]], until: int) -> list[str]:
    """The runs that the log's steps up to `until` are of, the newest first: not those whose were all done again."""
    found = []
    for run, first in reversed(parts):
        if first < until:
            found.append(run)
            until = first
    return found


def _told(root: Path, run: str, step: Mapping[str, Any]) -> int | None:
    """After which step a run began, of which the step's folder does not say it: by what it first told of its progress;
    of one that told of none, since nothing was left to do, by its result. None: it came to no step."""
    events = root / "runs" / run / "events.jsonl"
    try:
        with contextlib.suppress(FileNotFoundError), events.open("rb") as file:
            for line in file:
                if b'"progress"' not in line:
                    continue
                with contextlib.suppress(ValueError, KeyError, TypeError):  # a torn line
                    event = json.loads(line)
                    if event["event"] == "progress" and event["step"] == step["name"]:
                        return max(0, int(event["done"]) - 1)
    except OSError as failure:
        raise storage_error(failure, events) from failure
    return int((step.get("result") or {}).get("resumed_at", 0)) if step["status"] == "ok" else None
