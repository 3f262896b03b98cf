"""Workers as the tasks of a Slurm job, which a step submits and follows to its end.

The job's nodes and the machine of the step share the run's root. A job that Slurm puts back into its queue, preempted
or because a node failed, is followed on: its workers go on from their last checkpoint. So is one that is still there of
a step that was killed. One that Slurm told to end, since its time is up, has saved a checkpoint, and another goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash.errors import DFlashError, OutOfMemory, StepFailed, UsageError
from dflash.pipeline.files import write_text
from dflash.pipeline.launchers.config import Slurm
from dflash.pipeline.launchers.launcher import TrainingJob
from dflash.pipeline.launchers.slurmqueue import (
    ENDING,
    SCRIPT,
    Job,
    Queue,
    deaths,
    environment,
    first_death,
    lost,
    lost_node,
    ran_out_of_memory,
    submission,
    was_told,
)
from dflash.progress import Metric, Progress
from dflash.training.launching import ANSWERS_S, Told

SAVES_S = 90.0
"""How long a job may take to save what it has when the step is told to end; less than the step itself is given."""

_LOOKS_S, _ASKS_S, _ASKS_AT_THE_END_S = 0.2, 5.0, 0.5
"""How often logs are looked at, and how often Slurm is asked: its controller answers a whole cluster."""

_SAYS_S = 60.0
"""How often the log says that a job waits: a step with a `no_output_timeout` that waits is not one that hangs."""

_PATIENCE_S = 600.0
"""How long Slurm may not answer: its controller is started anew now and then, and jobs go on meanwhile."""

_PACKAGE = Path(__file__).parents[3]


class SlurmLauncher:
    """Fresh processes for each attempt, each start of a job, and each job."""

    def __init__(self, declared: Slurm) -> None:
        self._declared = declared

    def train(self, job: TrainingJob, progress: Progress) -> dict[str, Any]:
        """As `Launcher.train`. Raises also UsageError: Slurm refuses the job, or its nodes do not share the folder."""
        folder = job.out / "scratch" / "slurm"
        folder.mkdir(parents=True, exist_ok=True)
        request, stop = folder / "request.json", folder / "stop"
        fields: dict[str, Any] = {"warm_only": True, "stop": str(stop), "heldout": str(job.heldout)}
        fields |= {"train": asdict(job.config), "target": str(job.target), "rows": str(job.rows), "out": str(job.out)}
        write_text(request, json.dumps(fields))
        write_text(folder / "job.sh", SCRIPT)
        found = [str(_PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environ = {"OMP_NUM_THREADS": "1", **environment(os.environ, job.env), "PYTHONPATH": os.pathsep.join(found)}
        queue = Queue(name_of(job.out), environ)
        words = [sys.executable, "-m", "dflash.training.slurmtask", str(request)]
        command = submission(self._declared, queue.name, job.config, folder, words, stop)
        try:
            before = _found(queue, progress)
            while True:
                number = before or _submitted(queue, command, progress)
                following = _Following(job, queue, number, folder, progress, is_behind=bool(before))
                result = following.result()
                if result is not None:
                    return result
                progress.note(f"job {number} was told to end by Slurm, and has saved what it had")
                before = None
        except BaseException:
            queue.cancel()
            raise


def name_of(out: Path) -> str:
    """The name of the jobs of the step in the folder `out`, by which they are found again."""
    return f"dflash-{hashlib.sha256(str(out.absolute()).encode()).hexdigest()[:12]}"


def _found(queue: Queue, progress: Progress) -> str | None:
    """The job of an attempt before that waits or runs. One that is just ending, as one does that was cancelled, is
    waited for: it may be put back into the queue."""
    ending: str | None = None
    while found := queue.find():
        number, state = found
        if state != ENDING:
            progress.note(f"job {number} is there already")
            return number
        if number != ending:
            progress.note(f"job {number} is just ending: that is waited for")
        ending = number
        time.sleep(_ASKS_AT_THE_END_S)
    return None


def _submitted(queue: Queue, command: list[str], progress: Progress) -> str:
    number = queue.submit(command)
    progress.note(f"job {number} is submitted")
    return number


class _Following:
    """One job, from its place in the queue to its end. `is_behind`: it was there already, and what it has told so far,
    somebody else was told: of its progress the newest is enough."""

    def __init__(
        self, job: TrainingJob, queue: Queue, number: str, folder: Path, progress: Progress, *, is_behind: bool
    ) -> None:
        self._job, self._queue, self._number, self._progress = job, queue, number, progress
        self._logs = RankLogs(folder, number, job.config.topology.size)
        self._told = Told(self, hung=self._hangs)
        self._hung_at = self._stopped_at = float("inf")
        self._came_further = False
        self._is_behind = is_behind
        self._newest: tuple[int, int, Mapping[str, Metric] | None] | None = None
        self._standing = Job("PENDING")
        self._answered = self._said = time.monotonic()

    def update(self, done: int, total: int, metrics: Mapping[str, Metric] | None = None) -> None:
        self._came_further = True
        if self._is_behind:
            self._newest = done, total, metrics
        else:
            self._progress.update(done, total, metrics)

    def note(self, message: str) -> None:
        self._progress.note(message)

    def result(self) -> dict[str, Any] | None:
        """What the training gave; None: it has come further, and was told by Slurm to end before it was done. Raises as
        `SlurmLauncher.train`."""
        asked = float("-inf")
        while not self._standing.has_ended:
            try:
                told = self._told.result or self._told.failure or self._told.waiting
                at_the_end = told or self._stopped_at < float("inf")
                if time.monotonic() - asked > (_ASKS_AT_THE_END_S if at_the_end else _ASKS_S):
                    asked = time.monotonic()
                    self._ask()
                self._hear()
                time.sleep(_LOOKS_S)
            except KeyboardInterrupt:
                self._stopped_at, asked = time.monotonic(), float("-inf")
        self._hear()
        return self._outcome()

    def _hear(self) -> None:
        for rank, line in self._logs.new():
            if not self._told.hear(line):
                print(f"[{rank}] {line}", file=sys.stderr, flush=True)
        self._is_behind = False
        if self._newest:
            self._progress.update(*self._newest)
            self._newest = None

    def _hangs(self) -> None:
        self._hung_at = time.monotonic()

    def _ask(self) -> None:
        now, before, standing = time.monotonic(), self._standing, self._queue.job(self._number)
        if standing is None:
            if now - self._answered > _PATIENCE_S:
                raise lost(f"Slurm has not answered for {_PATIENCE_S:.0f} s: nobody knows how job {self._number} is")
            return
        self._standing, self._answered = standing, now
        if standing.restarts > before.restarts:
            self.note(f"job {self._number} was put back into the queue; it goes on from its last checkpoint")
            self._told, self._hung_at = Told(self, hung=self._hangs), float("inf")  # what was told is over
        if standing.state == "PENDING" and standing.reason and standing.reason != before.reason:
            self.note(f"job {self._number} waits: {standing.reason}")
        if standing.state == "PENDING" and now - self._said > _SAYS_S:
            print(f"job {self._number} waits: {standing.reason}", file=sys.stderr, flush=True)
            self._said = now
        if standing.state == "RUNNING" and before.state != "RUNNING":
            self.note(f"job {self._number} runs on {standing.nodes}")
        death = first_death(self._logs.of_the_job())
        never_lived = death is not None and death.never_lived
        if never_lived or now - self._hung_at > ANSWERS_S or now - self._stopped_at > SAVES_S:
            self._queue.cancel()
        elif self._stopped_at < float("inf") and standing.state == "RUNNING":
            self._queue.signal(self._number)  # again and again: workers that do not run yet hear nothing
        elif self._stopped_at < float("inf"):
            self._queue.cancel()

    def _outcome(self) -> dict[str, Any] | None:
        if self._told.result is not None:  # a failure may be of a start before
            return self._told.result
        if self._told.failure is not None:
            raise self._told.failure
        if self._told.waiting:
            raise self._told.hang(self._job.config)
        if self._stopped_at < float("inf"):
            raise KeyboardInterrupt
        if self._standing.state != "CANCELLED" and was_told(self._logs.of_the_job()) and self._came_further:
            return None
        raise failure_of(self._number, self._standing, self._logs)


class RankLogs:
    """What the workers of a job write, each into a file of its own, as one log: whole lines, each with its rank."""

    def __init__(self, folder: Path, number: str, workers: int, kept: int = 3) -> None:
        """The files are `number`-`rank`.log in `folder`; of each the last `kept` lines but progress are kept."""
        self.folder, self.workers, self._number = folder, workers, number
        self._offsets = dict.fromkeys(range(workers), 0)
        self._last: dict[int, deque[str]] = {rank: deque(maxlen=kept) for rank in range(workers)}

    def new(self) -> Iterator[tuple[int, str]]:
        """The lines that have come since the last time."""
        for rank, offset in self._offsets.items():
            try:
                with self._path(rank).open("rb") as log:
                    log.seek(offset)
                    data = log.read()
            except FileNotFoundError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[rank] += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                if line.strip() and not line.startswith('{"dflash"'):
                    self._last[rank].append(line)
                yield rank, line

    def last(self, rank: int) -> list[str]:
        """The last lines of a worker that are no progress."""
        return list(self._last[rank])

    def missing(self) -> list[int]:
        """The workers that have no file."""
        return [rank for rank in self._offsets if not self._path(rank).exists()]

    def of_the_job(self) -> str:
        """What the job itself wrote, so srun."""
        path = self.folder / f"{self._number}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def _path(self, rank: int) -> Path:
        return self.folder / f"{self._number}-{rank}.log"


def failure_of(number: str, standing: Job, logs: RankLogs) -> DFlashError:
    """What is to be said of a job that ended without a result, and why it is worth another attempt, or not."""
    state, job, again = standing.state, f"job {number}", "run again to go on from the last checkpoint"
    text, unseen = logs.of_the_job(), logs.missing()
    death = first_death(text)
    if state == "CANCELLED" and not (death and death.never_lived):
        return StepFailed(f"{job} was cancelled, not by this run", status=1, cure=again)
    if state == "OUT_OF_MEMORY" or ran_out_of_memory(text):
        cure = "ask for more with launcher.memory, or choose fewer train.rows"
        return OutOfMemory(f"memory of {job} ran out on a node", where=standing.nodes or None, cure=cure)
    if state in ("TIMEOUT", "DEADLINE"):
        cure = "give it more time with launcher.time_limit, or more to save with launcher.save_s"
        return StepFailed(f"the time of {job} was up before it had saved", status=124, cure=cure, reason="timeout")
    if state in ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"):
        return lost(f"{job} is gone ({state})")
    if said := lost_node(text):
        return lost(f"{job} has lost a node ({said})")
    if unseen and (not text or len(unseen) < logs.workers):
        cure = "put the run's root (--root) where all nodes of the cluster see it, at the same path"
        what = f"workers {', '.join(map(str, unseen))} of {job} have written nothing: their nodes do not see this"
        return UsageError(what, where=str(logs.folder), cure=cure)
    if was_told(text):
        cure = "give it more time with launcher.time_limit, or less to save with launcher.save_s"
        others = [f"; worker {each.rank} died ({each.how})" for each in deaths(text) if not each.was_told]
        return StepFailed(f"{job} was told to end before its first step{''.join(others[:1])}", status=1, cure=cure)
    if death is None:
        last = text.strip().splitlines()[-1:] or ["it said nothing"]
        return StepFailed(f"{job} ended as {state}: {last[0]}", status=1, cure=again)
    said = " | ".join(logs.last(death.rank)) or "it said nothing"
    return StepFailed(f"worker {death.rank} of {job} died ({death.how}): {said}", status=1, cure=again)
