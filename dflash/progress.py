"""How a room tells whoever is watching how far it is. Rooms know this protocol, never who listens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

Metric = float | int | str | Sequence[float]


class Progress(Protocol):
    """Receives the advance of one long task. Calls are cheap and may come many times a second."""

    def update(self, done: int, total: int, metrics: Mapping[str, Metric] | None = None) -> None:
        """`done` of `total` units are finished; `metrics` are the latest figures by name."""

    def note(self, message: str) -> None:
        """Say one line a person should see."""


class Silent:
    """Nobody is watching."""

    def update(self, done: int, total: int, metrics: Mapping[str, Metric] | None = None) -> None:
        pass

    def note(self, message: str) -> None:
        pass
