"""Which part of a training's log a run has written. A training that was interrupted, and that another run went on
with, has one log, in its step's folder: whoever goes on writes there, and again what came after the last checkpoint."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dflash.errors import DFlashError, storage_error
from dflash.pipeline.record import load_record
from dflash.pipeline.store import begun_by


@dataclass(frozen=True)
class Share:
    """Of a log, the steps after `first` up to `last` (None: to its end) are the run's own. Those up to `first` are of
    the run `before`, or of one that that went on with; those after `last` of the run `after`, or of a later one.

    What a run shows ends with its share, but begins with the training: what it made comes from all of it.
    """

    first: int = 0
    before: str | None = None
    last: int | None = None
    after: str | None = None

    def __str__(self) -> str:
        """In sentences, if there is anything to say."""
        said = []
        if self.first and self.before:
            steps = f"Steps 1 to {self.first:,} are" if self.first > 1 else "Step 1 is"
            said.append(f"{steps} of run {self.before}, with which this run went on.")
        if self.after:
            here = f"The log after step {self.last:,} is" if self.last else "The log is"
            said.append(f"{here} of run {self.after}, which went on from there, and is in its report.")
        return " ".join(said)


def own_share(root: Path, record: Mapping[str, Any], step: Mapping[str, Any], log: Path) -> Share:
    """A run's share in the `log` of its training `step`. One that found the training made has none, and shows all of
    it; one that came to no step of it has none, either, and shows nothing, though others may have trained in that
    folder. What was fetched is the run's own, whoever went on elsewhere. Raises StorageError."""
    if step["status"] == "skipped":
        return Share()
    done = next(_told(root, record["id"], step["name"]), None if step["status"] != "ok" else 1)
    if done is None:
        return Share(last=0)
    is_here = log.parent == root / step["folder"]
    last, after = min(_ends(root, record["id"], step), default=(None, None)) if is_here else (None, None)
    return Share(done - 1, step.get("resumes"), last, after)


def _ends(root: Path, run: str, step: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """After which step each run that began this one later, the newest first, has written the log. Of one whose record
    is gone that is not known, nor who began it before: this run's rows end with the last that it told of."""
    seen = {run, ""}
    try:
        later = begun_by(root / step["folder"])
    except OSError as failure:
        raise storage_error(failure, root / step["folder"]) from failure
    while later not in seen:
        seen.add(later)
        entry = _entry(root, later, step["folder"])
        if entry is None:
            for done in deque(_told(root, run, step["name"]), maxlen=1):
                yield done, later
            return
        for done in islice(_told(root, later, entry["name"]), 1):
            yield done - 1, later
        later = entry.get("resumes") or ""


def _entry(root: Path, run: str, folder: str) -> Mapping[str, Any] | None:
    """What a run's record says of the step with a folder."""
    with contextlib.suppress(DFlashError):
        return next((each for each in load_record(root, run)["steps"] if each["folder"] == folder), None)
    return None


def _told(root: Path, run: str, step: str) -> Iterator[int]:
    """How many steps of a training were done, each time that a run told it. Raises StorageError."""
    events = root / "runs" / run / "events.jsonl"
    try:
        with events.open("rb") as file:
            for line in file:
                if b'"progress"' not in line:
                    continue
                with contextlib.suppress(ValueError, KeyError, TypeError):  # a torn line
                    event = json.loads(line)
                    if event["event"] == "progress" and event["step"] == step:
                        yield int(event["done"])
    except FileNotFoundError:
        return
    except OSError as failure:
        raise storage_error(failure, events) from failure
