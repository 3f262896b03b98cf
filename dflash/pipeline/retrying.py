"""A step is tried again as its policy has it, with growing waits in between."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from dflash.errors import StepFailed
from dflash.pipeline.policy import Retry

T = TypeVar("T")


class AttemptFailed(Exception):
    """An attempt failed for a `reason` of policy.REASONS; `error` is what a person is told."""

    def __init__(self, reason: str, error: StepFailed) -> None:
        super().__init__(str(error))
        self.reason, self.error = reason, error


def tried(
    policy: Retry,
    once: Callable[[], T],
    sleep: Callable[[float], None],
    tell: Callable[[AttemptFailed, float], object],
) -> T:
    """What `once` returns, tried again as `policy` has it; `tell` is told of each failure that is not the last, and of
    the wait after it in seconds. Raises what the last attempt raised, or what `sleep` does."""
    if policy.attempts == 1:
        return once()
    import tenacity  # a tenth of a second to import

    growing = tenacity.wait_exponential(multiplier=policy.backoff_s, max=policy.most_s)

    def told(state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None
        assert state.next_action is not None
        failure = state.outcome.exception()
        assert isinstance(failure, AttemptFailed)
        tell(failure, state.next_action.sleep)

    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(policy.attempts),
        wait=lambda state: growing(state) * (1 - random.uniform(0, policy.jitter)),
        retry=tenacity.retry_if_exception(lambda failure: is_worth_another(policy, failure)),
        before_sleep=told,
        sleep=sleep,
        reraise=True,
    )
    return retrying(once)


def is_worth_another(policy: Retry, failure: BaseException) -> bool:
    """Whether a policy names the reason of a failed attempt, or its exit status."""
    return isinstance(failure, AttemptFailed) and (failure.reason in policy.on or failure.error.status in policy.on)
