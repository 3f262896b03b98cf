"""When a step is tried again, and how long that is waited for."""

from __future__ import annotations

import pytest

from dflash.errors import StepFailed
from dflash.pipeline.policy import Retry
from dflash.pipeline.retrying import AttemptFailed, is_worth_another, tried
from dflash.pipeline.stopping import Stopped


def failed(reason: str = "timeout", status: int = 1) -> AttemptFailed:
    return AttemptFailed(reason, StepFailed("it failed", status=status))


def waits_of(policy: Retry, failures: list[AttemptFailed]) -> list[float]:
    """The waits between attempts that fail so, and then one that does not."""
    waits: list[float] = []
    told: list[tuple[AttemptFailed, float]] = []
    left = iter(failures)

    def once() -> str:
        if failure := next(left, None):
            raise failure
        return "made"

    assert tried(policy, once, waits.append, lambda failure, wait: told.append((failure, wait))) == "made"
    assert told == list(zip(failures, waits, strict=True))
    return waits


def test_waits_double_up_to_the_longest():
    policy = Retry(attempts=6, backoff_s=10, most_s=60, jitter=0)
    assert waits_of(policy, [failed()] * 5) == [10, 20, 40, 60, 60]


def test_a_share_of_each_wait_is_taken_away_at_random():
    policy = Retry(attempts=30, backoff_s=8, most_s=8, jitter=0.5)
    waits = waits_of(policy, [failed()] * 29)
    assert all(4 <= wait <= 8 for wait in waits)
    assert len(set(waits)) > 20


def test_the_last_attempt_fails_as_it_failed():
    with pytest.raises(AttemptFailed) as caught:
        waits_of(Retry(attempts=2, backoff_s=0), [failed(), failed("memory")])
    assert caught.value.reason == "memory"


def test_only_reasons_and_statuses_that_are_named_are_worth_another_attempt():
    assert all(is_worth_another(Retry(), failed(reason)) for reason in ("timeout", "no_output", "lost", "memory"))
    assert not is_worth_another(Retry(), failed("exit", 9))
    assert is_worth_another(Retry(on=("exit",)), failed("exit", 9))
    assert is_worth_another(Retry(on=(9,)), failed("exit", 9))
    assert not is_worth_another(Retry(on=(9,)), failed("exit", 1))
    assert not is_worth_another(Retry(on=("exit",)), RuntimeError("of the runner"))
    with pytest.raises(AttemptFailed):
        waits_of(Retry(attempts=3), [failed("exit")])


def test_a_stop_during_the_wait_ends_it():
    def told_to_stop(seconds: float) -> None:
        raise Stopped

    def once() -> None:
        raise failed()

    with pytest.raises(Stopped):
        tried(Retry(attempts=3), once, told_to_stop, lambda failure, wait: None)
