"""Whether a process compiled, or found everything it asked for in the cache."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch._dynamo.utils import counters


@dataclass(frozen=True)
class CacheCounts:
    """This process's look-ups so far: `graphs` captured by Dynamo, and hits and misses of the caches behind them.

    A graph of AOTAutograd (`autograd_*`) is a forward and, where there is one, its backward; a bypass is a graph
    that the cache could not be asked for, so it was compiled.
    """

    graphs: int
    autograd_hits: int
    autograd_misses: int
    inductor_misses: int
    bypasses: int

    @property
    def compiled(self) -> int:
        """Look-ups that ended in a compilation."""
        return self.autograd_misses + self.inductor_misses + self.bypasses

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
    )
