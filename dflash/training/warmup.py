"""One warm-up process: `python -m dflash.training.warmup`, a request in on standard input, lines of JSON out.

{"set": {...a GraphSet...}, "workers": [[rank, its number on its host], ...]}

Each graph is a line {"worker": "drafter 5", "name": ..., "inputs": ..., "seconds": ..., "compiled": ...}; the last line
is {"counts": ..., "seconds": ...}.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from dflash.compilation.gate import Graph
from dflash.compilation.hits import cache_counts
from dflash.errors import DFlashError, OutOfMemory, UsageError
from dflash.progress import Silent
from dflash.training.communicator import ThreadGroup
from dflash.training.crew import Crew
from dflash.training.graphset import GraphSet
from dflash.training.sources import Blank


def warm_up(request: Mapping[str, Any], tell: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Run the graphs of the workers that are asked for, in turn, telling of each; what the cache had."""
    graphs = GraphSet.from_json(request["set"])
    begun = time.monotonic()

    def on_graph(worker: str, graph: Graph) -> None:
        tell({"worker": worker, **asdict(graph)})

    train, blank = graphs.train, Blank(graphs.target_config(), graphs.train.captured)
    group = ThreadGroup(train.topology.size, train.prefetch, numbers=dict(request["workers"]))
    Crew(train, blank, graphs.buckets, Silent(), on_graph, group).run(lambda worker, rank: None)
    return {"counts": cache_counts().to_json(), "seconds": time.monotonic() - begun}


def main() -> int:
    """Read the request, print the lines; the last is {"error": ...} of a warm-up that failed.

    One for which a person has to do something else says "failure", too: what the exception was made of."""
    # Of its own, and not inherited: compilers print, and outlive us for a moment.
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)

        def tell(line: dict[str, Any]) -> None:
            out.write(f"{json.dumps(line)}\n")
            out.flush()

        try:
            tell(warm_up(json.load(sys.stdin), tell))
            return 0
        except (OutOfMemory, UsageError) as failure:
            parts = [type(failure).__name__, failure.what, failure.where, failure.cure]
            tell({"error": str(failure), "failure": parts})
            return failure.exit_code
        except DFlashError as failure:
            tell({"error": str(failure)})
            return failure.exit_code
        except Exception as failure:
            traceback.print_exception(failure)
            tell({"error": f"{type(failure).__name__}: {failure}"})
            return 1


if __name__ == "__main__":
    sys.exit(main())
