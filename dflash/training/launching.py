"""A training as processes: starts them with torchrun, and is told by the first drafter how it goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash.errors import (
    BusyError,
    CheckpointError,
    CompilationError,
    DataError,
    DFlashError,
    OutOfMemory,
    StepFailed,
    StorageError,
    UsageError,
)
from dflash.progress import Progress
from dflash.training.config import TrainConfig


def train_in_processes(
    config: TrainConfig,
    target: Path,
    rows: Path,
    out: Path,
    progress: Progress,
    *,
    heldout: Path | None = None,
    warm_only: bool = False,
) -> dict[str, Any]:
    """`Trainer(...).train(out)` with a process for each worker; `rows` is the file of packed rows, `heldout` of those
    to measure with.

    An interrupt (Ctrl-C) lets the current step end and writes a checkpoint first. A worker that dies ends all others.

    Raises:
        what `Trainer` raises; StepFailed: a worker died otherwise, its traceback is on standard error, or they hang.
    """
    scratch = out / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    stop, request = scratch / "stop", scratch / "request.json"
    stop.unlink(missing_ok=True)
    fields = {"train": asdict(config), "target": str(target), "rows": str(rows), "out": str(out), "stop": str(stop)}
    more = {"heldout": str(heldout) if heldout else None, "warm_only": warm_only}
    request.write_text(json.dumps({**fields, **more}), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    command += [f"--nproc-per-node={config.topology.size}", sys.executable, "-m", "dflash.training.process"]
    found = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    # A session of its own: Ctrl-C is for us, and torchrun would end all workers where they stand.
    with subprocess.Popen(
        [*command, str(request)],
        # Where we are, since folders may be named from here; so the package has to be found.
        env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(found)},
        stdin=subprocess.PIPE,  # at whose end, ours, the workers end too
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        told = Told(progress, hung=threading.Timer(ANSWERS_S, process.terminate).start)
        while True:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    if not told.hear(line):
                        print(line, end="", file=sys.stderr)
                status = process.wait()
                break
            except KeyboardInterrupt:
                stop.touch()
    if told.failure is not None:
        raise told.failure
    if told.waiting and told.result is None:
        raise told.hang(config)
    if stop.exists():
        raise KeyboardInterrupt
    if told.result is None:
        raise StepFailed("a worker of the training died", status=status or 1, cure="its traceback is above")
    return told.result


ANSWERS_S = 3.0
"""How long the other workers have to say what they wait for, once one has."""

_RAISED = (UsageError, DataError, StorageError, BusyError, CheckpointError, CompilationError, OutOfMemory)
_KINDS = {kind.__name__: kind for kind in _RAISED}


class Told:
    """What the workers have said: lines of JSON; anything else is a library's."""

    def __init__(self, progress: Progress, hung: Callable[[], None]) -> None:
        """`hung` is called when the first worker says that it waits too long."""
        self._progress, self._hung = progress, hung
        self.waiting: dict[int, str] = {}
        self.result: dict[str, Any] | None = None
        self.failure: DFlashError | None = None

    def hear(self, line: str) -> bool:
        """Take a line, if it is a worker's; whether it is."""
        try:
            said = json.loads(line)
            kind = said.pop("dflash")
        except (ValueError, KeyError, AttributeError, TypeError):
            return False
        if kind == "update":
            self._progress.update(said["done"], said["total"], said["metrics"])
        elif kind == "note":
            self._progress.note(said["message"])
        elif kind == "hung":
            if not self.waiting:
                self._hung()
            self.waiting[said["rank"]] = said["waits_for"]
        elif kind == "result":
            self.result = said["result"]
        elif self.failure is None:
            self.failure = _KINDS.get(said["class"], DFlashError)(said["what"], where=said["where"], cure=said["cure"])
        return True

    def hang(self, config: TrainConfig) -> StepFailed:
        """That they hang, once one has said so."""
        return StepFailed(
            f"the workers hang, for {config.patience_s:g} s now: {self._who_waits(config.topology.size)}",
            status=1,
            cure="look at the worker that waits for nobody; run again to go on from the last checkpoint",
        )

    def _who_waits(self, workers: int) -> str:
        others = [rank for rank in range(workers) if rank not in self.waiting]
        lines = [f"worker {rank} waits for {what}" for rank, what in sorted(self.waiting.items())]
        return "; ".join(lines + [f"worker {rank} waits for nobody" for rank in others])
