"""How a step is run, which decides nothing about its result: none of this is part of a step's key."""

from __future__ import annotations

from dataclasses import dataclass

REASONS = ("timeout", "no_output", "lost", "memory", "exit")
"""Why an attempt failed: it took too long, said nothing for too long, the connection to its machine was lost, memory
ran out there or on its GPU, or anything else, of which the exit status tells."""

LEFT_OUT = "left out"
"""The status of a step whose `when` does not hold, or of which a need is left out: in a plan and in a record."""

IDLE = ("skip", LEFT_OUT)
"""The statuses of a planned step that will not run."""


@dataclass(frozen=True)
class Retry:
    """Up to `attempts` in all. `on` are the reasons that are worth another one: of REASONS, or an exit status.

    Before the n-th retry there is a wait of `backoff_s` * 2**(n - 1) seconds, `most_s` at most, of which a share of up
    to `jitter` is taken away at random, so that many that failed at once do not all come back at once.
    """

    attempts: int = 1
    on: tuple[str | int, ...] = ("timeout", "no_output", "lost", "memory")
    backoff_s: float = 10.0
    most_s: float = 600.0
    jitter: float = 0.5


@dataclass(frozen=True)
class Limits:
    """Seconds that one attempt may take, and may say nothing (no progress, no note, no line of its log); None: any."""

    timeout_s: float | None = None
    no_output_s: float | None = None
