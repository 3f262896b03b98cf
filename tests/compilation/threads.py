"""Threads that may fail."""

from __future__ import annotations

import threading


def in_threads(count: int, body) -> list[BaseException]:
    """Run `body(number)` in `count` threads; what they raised."""
    raised: list[BaseException] = []

    def run(number: int) -> None:
        try:
            body(number)
        except BaseException as failure:
            raised.append(failure)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return raised
