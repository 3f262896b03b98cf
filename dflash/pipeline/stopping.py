"""Ctrl-C and SIGTERM of a run: noted when they come, acted on between events, so that no step is cut in the middle."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

_POLL_S = 0.05


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
        return len(self.signals) > self.excused + 1

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
