"""What the verb evaluate does: real speculative decoding of a person's prompts, and its figures as a table."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.cli import print_json
from dflash.errors import UsageError
from dflash.training.config import EvaluateConfig

if TYPE_CHECKING:
    from rich.table import Table

    from dflash.pipeline.view import View
    from dflash.progress import Metric

STEP = "evaluate"
DTYPES = {"cpu": "float64", "cuda": "bfloat16"}
"""Where none is asked for: on a CPU what makes outputs comparable to the last token, on a GPU what serving uses."""


def evaluate(*, checkpoint: str, data: Sequence[str], target: str, options: Mapping[str, Any], as_json: bool) -> None:
    """Decode with the drafter and without, and report. `options` are fields of `EvaluateConfig`; an empty dtype is the
    device's."""
    if not data:
        raise UsageError("--data is missing", cure="give it: --data FILE, once for each data set")
    fitting = DTYPES.get(options["device"], "float64")
    try:
        config = EvaluateConfig(**{**options, "dtype": options["dtype"] or fitting, "threads": 0})
    except ValueError as failure:
        raise UsageError(str(failure), where=STEP) from failure
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers.utils import logging

    from dflash.pipeline.view import view_for
    from dflash.training.evaluation import compare

    logging.disable_progress_bar()
    begun = time.monotonic()
    with view_for(sys.stderr) as view:
        view.started(STEP, "run", [f"{checkpoint} with {target}, {config.dtype} on {config.device}"])
        report = compare(config, Path(target), Path(checkpoint), [Path(each) for each in data], Shown(view))
        view.finished(STEP, "ok", time.monotonic() - begun, [])
    if as_json:
        print_json({"checkpoint": checkpoint, "target": target, **asdict(config), **report})
    else:
        _show(report)


class Shown:
    """Progress on a view."""

    def __init__(self, view: View) -> None:
        self._view = view

    def update(self, done: int, total: int, metrics: Mapping[str, Metric] | None = None) -> None:
        self._view.progress(STEP, done, total, metrics or {})

    def note(self, message: str) -> None:
        self._view.note(STEP, message)


def _show(report: Mapping[str, Any]) -> None:
    from rich.text import Text

    from dflash.pipeline.show import console_on

    console = console_on()
    rows = list(report["datasets"])
    if len(rows) > 1:
        rows.append({"name": "all", **report["all"], "passed_over": {}})
    console.print(_figures(rows))
    console.print(Text("\nof the times that a slot was reached, it was accepted in %:"))
    console.print(_slots(rows, report["block"]))
    for row in rows:
        for reason, count in row["passed_over"].items():
            console.print(Text(f"{row['name']}: {count} passed over: {reason}"))


def _figures(rows: Sequence[Mapping[str, Any]]) -> Table:
    headings = ["prompts", "tokens", "acceptance length", "tokens/s", "plain", "speedup"]
    same = all("identical" in row for row in rows)
    table = _table([*headings, "identical"] if same else headings)
    for row in rows:
        counts = f"{row['prompts']:,}", f"{row['tokens']:,}", f"{row['acceptance_length']:.2f}"
        paces = f"{row['speculative_tokens_per_s']:,.1f}", f"{row['plain_tokens_per_s']:,.1f}", f"{row['speedup']:.2f}"
        table.add_row(row["name"], *counts, *paces, *([f"{row['identical']} of {row['prompts']}"] if same else []))
    return table


def _slots(rows: Sequence[Mapping[str, Any]], block: int) -> Table:
    table = _table([str(slot) for slot in range(1, block)])
    for row in rows:
        table.add_row(
            row["name"], *("-" if share is None else f"{share:.0%}"[:-1] for share in row["accepted_by_slot"])
        )
    return table


def _table(headings: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("data", overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
