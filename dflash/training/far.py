"""Pre-warm as a program, which `./inv prewarm` runs with an environment's Python, on a host or on this machine.

    PYTHON -P -m dflash.training.far ROOT HOST

A request comes in on standard input: {"train": a TrainConfig, "target": a TargetConfig, "buckets": [...], "hosts":
workers on each host}. Lines of JSON go out: {"note": text}, {"done": 1, "total": 9}, and last {"report": ...}.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.compilation.vault import Vault, vault_folder
from dflash.errors import DFlashError, as_answer, storage_error
from dflash.progress import Metric
from dflash.training.config import TargetConfig, train_config
from dflash.training.graphset import GraphSet
from dflash.training.prewarm import prewarm


class Lines:
    """Progress as lines of JSON."""

    def update(self, done: int, total: int, metrics: Mapping[str, Metric] | None = None) -> None:
        _print(done=done, total=total)

    def note(self, message: str) -> None:
        _print(note=message)


def warmed(request: Mapping[str, Any], root: Path, host: str) -> dict[str, Any]:
    """Pre-warm below `root`; the report, with the folder of the live cache. A folder for each key: what one compiled,
    an interrupted one goes on with.

    Raises:
        UsageError: the configuration does not fit the target, or there is no target.
        CompilationError: see `prewarm`.
        StorageError: the root can not be written.
    """
    graphs = graph_set(request)
    digest = hashlib.sha256(json.dumps(graphs.key(), sort_keys=True).encode()).hexdigest()[:16]
    out = root / "prewarm" / digest
    try:
        out.mkdir(parents=True, exist_ok=True)
        vault = Vault(vault_folder(root), at="" if host == "local" else f" --host {host}")
        return {**prewarm(graphs, out, Lines(), vault), "folder": str(out)}
    except OSError as failure:
        raise storage_error(failure, failure.filename or out) from failure


def graph_set(request: Mapping[str, Any]) -> GraphSet:
    """The closed set of a pipeline's training step. A target in a folder is read there; one that the pipeline trains
    is known from its declaration."""
    from dflash.model.bytelevel import byte_tokenizer
    from dflash.model.target import target_config
    from dflash.training.bytelm import model_config

    declared = TargetConfig(**request["target"])
    target = target_config(Path(declared.folder)) if declared.folder else model_config(declared, byte_tokenizer())
    return GraphSet.of(train_config(request["train"]), target, request["buckets"], request["hosts"])


def main() -> int:
    """Read the request, print the lines."""
    root, host = sys.argv[1:]
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        _print(report=warmed(json.load(sys.stdin), Path(root).expanduser().absolute(), host))
        return 0
    except Exception as failure:
        return answered(failure)


def answered(failure: Exception) -> int:
    """Say on standard error what has failed; the exit status for it."""
    if not isinstance(failure, DFlashError):
        traceback.print_exception(failure)
    print(as_answer(failure), file=sys.stderr)
    return getattr(failure, "exit_code", 1)


def _print(**line: object) -> None:
    sys.stdout.write(f"{json.dumps(line)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
