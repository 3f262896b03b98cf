"""Looks on at a training on several hosts: one log, one outcome, and none goes on when one has ended."""

from __future__ import annotations

import contextlib
import functools
import math
import queue
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash.errors import DFlashError, StepFailed
from dflash.hosts import jobs
from dflash.hosts.failures import HostError, LostConnection
from dflash.pipeline.launchers import held
from dflash.pipeline.launchers.node import OUT_OF_MEMORY
from dflash.pipeline.launchers.post import Post
from dflash.progress import Progress
from dflash.training.config import TrainConfig
from dflash.training.launching import ANSWERS_S, Told

SETTLE_S = 3.0
"""How long hosts may take to end by themselves, and to say why, once one has."""

GIVEN_UP_S = 30.0
"""A host that can not be told to end for so long ends by itself, when nobody renews its lease."""

_DEATH = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) ")
"""What torchrun says of the first worker of its host that died."""


@dataclass
class Member:
    """A post with its job there; what was heard of it: the last lines by rank (None: of torchrun), who `died` first and
    with which exit code, whether its `memory_ran_out`, how the job `ended`, or why it is `lost`."""

    post: Post
    job: str
    lines: dict[int | None, deque[str]] = field(default_factory=dict)
    died: tuple[int, int] | None = None
    memory_ran_out: bool = False
    ended: jobs.Job | None = None
    lost: HostError | None = None

    @property
    def is_over(self) -> bool:
        return self.ended is not None or self.lost is not None

    def keep(self, rank: int | None, line: str) -> None:
        """Keep a line that is no worker's word to us."""
        if rank is None and line == OUT_OF_MEMORY:
            self.memory_ran_out = True
            return
        self.lines.setdefault(rank, deque(maxlen=3)).append(line)
        if rank is None and (death := _DEATH.search(line)):
            self.died = self.post.ranks[int(death[2])], int(death[1])

    def failure(self, config: TrainConfig) -> StepFailed:
        """What is said of a training that this member's end has ended."""
        cure, where, reason, cause = "run again to go on from the last checkpoint", self.post.host.name, None, ""
        if self.memory_ran_out:
            cure = "free memory there, or choose fewer workers for it, or smaller train.rows"
            reason, cause = "memory", f"; {OUT_OF_MEMORY}"
        if self.died is None:
            code = self.ended.code if self.ended else 1
            what = f"torchrun ended with {code}{cause}{_last(self.lines.get(None, ()))}"
            return StepFailed(what, status=code or 1, where=where, cure=cure, reason=reason)
        rank, code = self.died
        role = "drafter" if rank in config.topology.drafter_ranks else "target"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        what = f"worker {rank} ({role}) {how}{cause}{_last(self.lines.get(rank, ()))}"
        return StepFailed(what, status=128 - code if code < 0 else code or 1, where=where, cure=cure, reason=reason)


def _last(lines: Sequence[str] | deque[str]) -> str:
    return f"; its last lines: {' | '.join(lines)}" if lines else ""


class Watch:
    """Follows the jobs of `members` until the last has ended."""

    def __init__(self, members: Sequence[Member], config: TrainConfig, progress: Progress) -> None:
        self.members, self._config = members, config
        self._heard: queue.SimpleQueue[tuple[Member, str | jobs.Job | DFlashError]] = queue.SimpleQueue()
        self._over = threading.Event()
        self._told = Told(progress, hung=lambda: self._end_after(ANSWERS_S))
        self._until = math.inf
        self._ended_badly: list[Member] = []
        self._stopping = False

    def run(self) -> dict[str, Any]:
        """The training's result. An interrupt (Ctrl-C) lets the current step end and writes a checkpoint first.

        Raises:
            DFlashError: what a worker told. StepFailed: a worker died, or they hang; names host and rank.
            LostConnection: a host was not heard of for jobs.PATIENCE_S. KeyboardInterrupt: they were stopped.
        """
        for member in self.members:
            held.beside(held.hear, member.post.host, member.job, functools.partial(self._put, member))
            held.beside(held.renew, member.post.host, f"{member.post.own}/lease", self._over)
        while True:
            try:
                self._wait()
                break
            except KeyboardInterrupt:
                self._stopping = True
                self._end_after(held.SAVE_S)
                for member in self.members:
                    held.beside(held.touch, member.post.host, f"{member.post.own}/stop")
        self._over.set()
        return self._outcome()

    def end(self) -> None:
        """End all that still runs, and be back once it has, or can not be told to."""
        ending = [held.beside(held.end, each.post.host, each.job) for each in self.members if not each.is_over]
        for each in ending:
            each.join(GIVEN_UP_S)
        self._over.set()

    def _put(self, member: Member, said: str | jobs.Job | DFlashError) -> None:
        self._heard.put((member, said))

    def _wait(self) -> None:
        while not all(member.is_over for member in self.members):
            with contextlib.suppress(queue.Empty):
                self._take(*self._heard.get(timeout=0.2))
            if time.monotonic() > self._until:
                self.end()
                while not self._heard.empty():
                    self._take(*self._heard.get())
                return

    def _take(self, member: Member, said: str | jobs.Job | DFlashError) -> None:
        if isinstance(said, str):
            marked = re.match(r"\[(\d+)\] ", said)
            if not self._told.hear(said[marked.end() :] if marked else said):
                rank = int(marked[1]) if marked else None
                print(said if marked else f"[{member.post.host.name}] {said}", file=sys.stderr, flush=True)
                member.keep(rank, said[marked.end() :] if marked else said)
            return
        if isinstance(said, jobs.Job) and said.state == "lost":
            what = "it has started anew, or what kept the workers there was killed"
            member.lost = LostConnection(what, layer=str(member.post.host.chain))
        elif isinstance(said, jobs.Job):
            member.ended = said
        else:
            member.lost = said if isinstance(said, HostError) else LostConnection(said.what, layer=str(said.where))
        if not (member.ended and member.ended.code == 0):
            self._ended_badly.append(member)
            self._end_after(SETTLE_S)

    def _end_after(self, seconds: float) -> None:
        self._until = min(self._until, time.monotonic() + seconds)

    def _outcome(self) -> dict[str, Any]:
        if self._told.failure is not None:
            raise self._told.failure
        if self._told.waiting and self._told.result is None:
            raise self._told.hang(self._config)
        if self._stopping:
            raise KeyboardInterrupt
        if self._told.result is not None:
            return self._told.result
        for member in self.members:
            if member.lost:
                what = f"{member.post.host.name} is lost: {member.lost.what}"
                cure = "once it is back, run again to go on from the last checkpoint"
                raise LostConnection(what, layer=member.lost.layer, cure=cure)
        # A worker that the kernel or a signal killed was the first: others fail by an exception when it is gone.
        blamed = sorted(
            [*self._ended_badly, *self.members],
            key=lambda member: (
                not member.memory_ran_out,
                member.died is None,
                member.died is not None and member.died[1] >= 0,
            ),
        )
        raise blamed[0].failure(self._config)
