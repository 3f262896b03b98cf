"""One warm-up process: `python -m dflash.training.warmup`, a request in on standard input, a report out.

{"config": {…}, "target": "model folder", "rows": "rows.safetensors", "roles": ["target", "drafter"]}
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from dflash.compilation.hits import cache_counts
from dflash.errors import DFlashError
from dflash.progress import Silent
from dflash.training.config import train_config
from dflash.training.packing import load_rows
from dflash.training.trainer import Trainer


def warm_up(request: dict[str, Any]) -> dict[str, Any]:
    """Warm the workers of the requested roles, one role alone or the whole layout; what it took and counted."""
    config = train_config(request["config"])
    rows = load_rows(Path(request["rows"]))
    begun = time.monotonic()
    trainer = Trainer(config, Path(request["target"]), rows, Silent())
    trainer.warm(request["roles"])
    counts = cache_counts()
    return {
        "graphs": counts.graphs,
        "hit_rate": counts.hit_rate,
        "counts": counts.to_json(),
        "seconds": time.monotonic() - begun,
        "warm_s": trainer.warm_seconds,
    }


def main() -> int:
    """Read the request, print the report as the last line."""
    try:
        print(json.dumps(warm_up(json.load(sys.stdin))))
    except DFlashError as failure:
        print(f"error: {failure}", file=sys.stderr)
        return failure.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
