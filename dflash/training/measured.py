"""Measuring as a program, which `./inv split` runs with an environment's Python, on a host or on this machine.

    PYTHON -P -m dflash.training.measured ROOT

A request comes in on standard input, as dflash.training.far has it, with one more field: {"link": bytes a second}.
Lines of JSON go out: {"note": text}, and last {"figures": {...a Figures...}}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash.errors import storage_error
from dflash.training.far import Lines, answered, graph_set
from dflash.training.prewarm import CACHE, use_cache


def measured(request: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """The figures of a pipeline's training on this machine. What is compiled for it is kept below `root`.

    Raises:
        UsageError: the configuration does not fit the target, there is no target, or a role does not fit the device.
        StorageError: the root can not be written.
    """
    cache = root / "measuring" / CACHE
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise storage_error(failure, failure.filename or cache) from failure
    use_cache(cache)
    from dflash.training.measuring import measure

    graphs = graph_set(request)
    return asdict(measure(graphs.train, graphs.target_config(), graphs.buckets, request["link"], Lines()))


def main() -> int:
    """Read the request, print the lines."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Of its own, and not inherited: compilers print.
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        sys.stdout = out
        try:
            figures = measured(json.load(sys.stdin), Path(sys.argv[1]).expanduser().absolute())
            out.write(f"{json.dumps({'figures': figures})}\n")
            return 0
        except Exception as failure:
            return answered(failure)


if __name__ == "__main__":
    sys.exit(main())
