"""Ctrl-C and SIGTERM of a run: noted when they come, acted on between events, so that no step is cut in the middle.

After one, the step that is at work has GRACE_S to save what it has; then each last step has a time of its own, and is
tried once. A second one ends what is at work, and no more is begun.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

from dflash.pipeline.policy import LEFT_OUT, Limits

GRACE_S = 120.0
"""How long a step may take to save what it has when it is told to end: 14.7 GB of a large drafter take 20 s to a quick
disk. A last step has as long after a stop, unless it has a timeout."""

_POLL_S = 0.05


def limits_after(limits: Limits) -> Limits:
    """The limits of a last step that runs after a stop."""
    return Limits(limits.timeout_s or GRACE_S, limits.no_output_s)


def last_of(plan: Mapping[str, Any]) -> dict[str, float]:
    """The last steps of a plan, as plan.json has it, and how many seconds each has after a stop."""
    last = [each for each in plan["steps"] if each.get("is_last") and each["status"] != LEFT_OUT]
    return {each["name"]: each.get("timeout_s") or GRACE_S for each in last}


def patience_s(last: Iterable[float]) -> float:
    """How long a run takes at most to end once it is told to, if its last steps have that many seconds: one that is out
    of time is told to end, too."""
    return GRACE_S + sum(each + GRACE_S for each in last)


class Stopped(Exception):
    """The run was told to stop while it waited."""


class Stops:
    """The signals that came. `excused` of them are not about what runs now: a last step runs after one."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.excused = 0

    @property
    def told(self) -> bool:
        """Whether what runs now is to save what it has and end."""
        return len(self.signals) > self.excused

    @property
    def told_again(self) -> bool:
        """Whether it is to be killed."""
        return len(self.signals) > max(self.excused, 1)

    def sleep(self, seconds: float) -> None:
        """Wait, but not longer than until a signal. Raises Stopped."""
        until = time.monotonic() + seconds
        while not self.told and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))
        if self.told:
            raise Stopped

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Note signals in place of being ended by them."""

        def note(number: int, frame: FrameType | None) -> None:
            self.signals.append(number)

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
