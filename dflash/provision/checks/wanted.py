"""What a machine is meant to have, as the inventory and the environment say it."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.hosts.chain import Hop


@dataclass(frozen=True)
class Wanted:
    """`gpus` is how many, 0 where nobody said; `container` the chain's first hop into one; `root` where the work is
    kept; `min_driver` the oldest NVIDIA driver that the environment's CUDA runs on; `now` this machine's time when the
    host was asked for its own, in seconds since 1970, None where that is not to be compared."""

    gpus: int = 0
    container: Hop | None = None
    root: str = ""
    min_driver: str | None = None
    now: float | None = None
