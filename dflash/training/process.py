"""One worker as a process: `torchrun --no-python python -m dflash.training.process REQUEST.json`.

The first drafter tells how it goes, in lines of JSON on standard output; see `dflash.training.launching`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.errors import DFlashError
from dflash.progress import Metric
from dflash.training.config import train_config
from dflash.training.packing import load_rows
from dflash.training.processes import ProcessGroup
from dflash.training.trainer import Trainer


def say(kind: str, **fields: Any) -> None:
    """One line, whole, whoever else writes to the same pipe."""
    sys.stdout.write(json.dumps({"dflash": kind, **fields}) + "\n")
    sys.stdout.flush()


class Telling:
    """Progress as lines."""

    def update(self, done: int, total: int, metrics: Mapping[str, Metric] | None = None) -> None:
        say("update", done=done, total=total, metrics=dict(metrics or {}))

    def note(self, message: str) -> None:
        say("note", message=message)


def _end_with_the_launcher() -> None:
    """End this process when standard input does: whoever started the training is gone."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(1)


def _watch(group: ProcessGroup, patience_s: float, trained: threading.Event) -> None:
    """Tell, once, when this worker has asked another for something and has not come further for that long."""
    while not trained.wait(min(1.0, patience_s)):
        if what := group.doing.stalled(patience_s):
            say("hung", rank=group.ranks[0], waits_for=what)
            return


def main() -> int:
    """Train; the exit status of whatever went wrong."""
    threading.Thread(target=_end_with_the_launcher, daemon=True).start()
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    config = train_config(request["train"])
    stop = Path(request["stop"])
    try:
        group, trained = ProcessGroup(config), threading.Event()
        threading.Thread(target=_watch, args=(group, config.patience_s, trained), daemon=True).start()
        trainer = Trainer(
            config,
            Path(request["target"]),
            load_rows(Path(request["rows"])),
            Telling(),
            heldout=load_rows(Path(request["heldout"])) if request["heldout"] else None,
            warm_only=request["warm_only"],
            group=group,
            stopping=stop.exists,
        )
        result = trainer.train(Path(request["out"]))
        trained.set()
        if result:
            say("result", result=result)
        group.close()
    except DFlashError as failure:
        say("failure", **{"class": type(failure).__name__}, what=failure.what, where=failure.where, cure=failure.cure)
        return failure.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
