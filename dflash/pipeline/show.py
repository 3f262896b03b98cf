"""Plans, records and lists of runs as tables for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dflash.pipeline.plan import Plan
from dflash.pipeline.policy import LEFT_OUT
from dflash.pipeline.view import clock, short_why

_STYLES = {
    "ok": "green",
    "skip": "dim",
    "skipped": "dim",
    LEFT_OUT: "dim",
    "failed": "red",
    "blocked": "red",
    "interrupted": "red",
    "damaged": "red",
}


def show_plan(plan: Plan, *, every_reason: bool = False, stream: TextIO | None = None) -> None:
    """A line a step: what will be done and why; then which steps need a GPU."""
    table = _table("step", "kind", "will", "GPU", "why")
    for each in plan.steps:
        why = "\n".join(each.why) if every_reason else short_why(each.why)
        status = Text(each.status, style=_STYLES.get(each.status, ""))
        gpu = "needs one" if each.needs_gpu else "no"
        table.add_row(Text(each.step.name), Text(each.step.kind.name), status, gpu, Text(why))
    console = console_on(stream)
    at = f"{plan.host.name} ({plan.host.chain})" if plan.host.name != str(plan.host.chain) else plan.host.name
    console.print(Text(f"{plan.pipeline.name} on {at}"), style="bold")
    console.print(table)
    console.print(Text(gpu_line(plan)))


def gpu_line(plan: Plan) -> str:
    """Which steps need a GPU, in a sentence."""
    names = [each.step.name for each in plan.steps if each.needs_gpu]
    if not names:
        return "No step needs a GPU."
    verb = "need" if len(names) > 1 else "needs"
    sentence = f"{', '.join(names)} {verb} a GPU."
    declared = plan.host.gpus
    return f"{sentence} {plan.host.name} has {declared}." if declared else sentence


def show_record(record: Mapping[str, Any], folder: str, stream: TextIO | None = None) -> None:
    """A run's figures and steps."""
    console = console_on(stream)
    status = Text(record["status"], style=_STYLES.get(record["status"], ""))
    console.print(Text(f"{record['id']}  ", style="bold") + status)
    figures = [f"{clock(record['wall_s'])}, peak memory {record['peak_rss_mb'] / 1000:.2f} GB"]
    if record.get("acceptance_length") is not None:
        untrained = record.get("acceptance_length_untrained")
        aside = f" (untrained {untrained:.2f})" if untrained is not None else ""
        figures.append(f"acceptance length {record['acceptance_length']:.2f}{aside}")
    if record.get("greedy_total") is not None:
        same = f"{record.get('greedy_identical')} of {record['greedy_total']}"
        figures.append(f"{same} outputs equal to the target's own")
    if again := record.get("replay"):
        figures.append(f"replay of {again['of']}: {again['said']}")
    for figure in figures:
        console.print(Text(figure))
    table = _table("step", "status", "time", "MB", "why")
    for step in record["steps"]:
        why = step["error"] or short_why(step["why"])
        state = Text(step["status"], style=_STYLES.get(step["status"], ""))
        table.add_row(Text(step["name"]), state, clock(step["seconds"]), f"{step['peak_rss_mb']:,.0f}", Text(why))
    console.print(table)
    console.print(Text(f"everything about it: {folder}"))


def show_runs(records: Sequence[Mapping[str, Any]], stream: TextIO | None = None) -> None:
    """A line a run, newest last."""
    if not records:
        console_on(stream).print("There is no run yet; ./inv train starts one.")
        return
    table = _table("run", "status", "host", "time", "acceptance")
    for record in records:
        state = Text(record["status"], style=_STYLES.get(record["status"], ""))
        length = record.get("acceptance_length")
        shown = "" if length is None else f"{length:.2f}"
        took = "" if record["wall_s"] is None else clock(record["wall_s"])
        table.add_row(Text(record["id"]), state, Text(record["host"] or ""), took, shown)
    console_on(stream).print(table)


def console_on(stream: TextIO | None = None) -> Console:
    """A console for tables on `stream` (default: standard output)."""
    stream = stream or sys.stdout
    # Off a terminal nothing is cut to a width that nobody has.
    return Console(file=stream, highlight=False, width=None if stream.isatty() else 200)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name, justify="right" if name in ("time", "MB", "acceptance") else "left")
    return table
