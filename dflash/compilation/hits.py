"""Whether a process compiled, or found everything it asked for in the cache."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, dataclass
from typing import Any

from torch._dynamo.utils import counters

_made = 0
"""Kernels that Triton has compiled in this process."""


@dataclass(frozen=True)
class CacheCounts:
    """This process's look-ups so far: `graphs` captured by Dynamo, and hits and misses of the caches behind them.

    A graph of AOTAutograd (`autograd_*`) is a forward and, where there is one, its backward; a bypass is a graph
    that the cache could not be asked for, so it was compiled. `kernels` are those that Triton compiled in this process,
    and not in one of inductor's compile workers: they can be missing where the graph that needs them was found.
    """

    graphs: int
    autograd_hits: int
    autograd_misses: int
    inductor_misses: int
    bypasses: int
    kernels: int

    @property
    def compiled(self) -> int:
        """Look-ups that ended in a compilation."""
        return self.autograd_misses + self.inductor_misses + self.bypasses + self.kernels

    def to_json(self) -> dict[str, Any]:
        """The counts as a plain mapping."""
        return asdict(self)


def cache_counts() -> CacheCounts:
    """The counters of this process."""
    autograd, inductor = counters["aot_autograd"], counters["inductor"]
    return CacheCounts(
        graphs=counters["stats"]["unique_graphs"],
        autograd_hits=autograd["autograd_cache_hit"],
        autograd_misses=autograd["autograd_cache_miss"],
        inductor_misses=inductor["fxgraph_cache_miss"],
        bypasses=autograd["autograd_cache_bypass"] + inductor["fxgraph_cache_bypass"],
        kernels=_made,
    )


def _listen() -> None:
    """Have Triton, where there is one, tell of each kernel that it is asked for."""
    if importlib.util.find_spec("triton") is None:
        return
    from triton import knobs

    before = knobs.compilation.listener

    def told(*, cache_hit: bool, **rest: Any) -> None:
        global _made
        _made += not cache_hit
        if before is not None:
            before(cache_hit=cache_hit, **rest)

    knobs.compilation.listener = told


_listen()
