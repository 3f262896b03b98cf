"""Points in the work of a device, and the time between them: on a GPU by its own events, on a CPU by the clock."""

from __future__ import annotations

import time

import torch

Moment = float | torch.cuda.Event
"""A point in the work of a device."""


def now(device: torch.device) -> Moment:
    """This moment; on a GPU, when it has done what it was told so far."""
    if device.type != "cuda":
        return time.monotonic()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def is_over(moment: Moment) -> bool:
    """Whether a device has come so far, without waiting for it."""
    return isinstance(moment, float) or bool(moment.query())


def seconds(begun: Moment, ended: Moment) -> float:
    """From one moment to another, which is waited for."""
    if isinstance(begun, float) or isinstance(ended, float):
        assert isinstance(begun, float)
        assert isinstance(ended, float)
        return ended - begun
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1e3
