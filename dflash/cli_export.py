"""What the verb export does: a pipeline as another engine's YAML."""

from __future__ import annotations

import sys
from pathlib import Path

from dflash.cli import load
from dflash.errors import UsageError, storage_error


def export(*, pipeline: str, to: str, image: str, volume: str, gpu: str, secret: str, out: str) -> None:
    """Print the YAML, or write it to `out`."""
    from dflash.pipeline.exporting import jobset, skypilot
    from dflash.pipeline.exporting.writing import written
    from dflash.pipeline.files import write_text

    if to not in ("skypilot", "jobset"):
        raise UsageError(f"{to!r} is no engine to export to", where="--to", cure="name skypilot or jobset")
    loaded = load(pipeline, ())
    if to == "skypilot":
        documents = [skypilot.task(loaded, image, volume, gpu)]
    else:
        documents = jobset.documents(loaded, image, volume, secret)
    text = written(documents, to)
    if not out:
        sys.stdout.write(text)
        return
    try:
        write_text(Path(out), text)
    except OSError as failure:
        raise storage_error(failure, out) from failure
    print(f"{out} is written; it was never run by {to}", file=sys.stderr)
