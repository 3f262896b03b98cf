"""Plans, records and lists of runs as tables for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dflash.pipeline.figures import change, shown
from dflash.pipeline.machines import gpus_in_words
from dflash.pipeline.plan import Plan
from dflash.pipeline.policy import LEFT_OUT
from dflash.pipeline.report.timeline import status_of
from dflash.pipeline.view import clock, short_why
from dflash.training.usage import in_words

if TYPE_CHECKING:
    from dflash.pipeline.removing import Removal
    from dflash.pipeline.sidebyside import Comparison

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
_MOST_FILES = 10


def show_plan(plan: Plan, *, every_reason: bool = False, stream: TextIO | None = None) -> None:
    """A line a step: what will be done and why; then which steps need a GPU."""
    table = _table("step", "kind", "will", "GPU", "why")
    for each in plan.steps:
        why = "\n".join(each.why) if every_reason else short_why(each.why)
        status = Text(each.status, style=_STYLES.get(each.status, ""))
        gpu = "no" if not each.gpus else f"needs {'one' if each.gpus == 1 else each.gpus}"
        table.add_row(Text(each.step.name), Text(each.step.kind.name), status, gpu, Text(why))
    console = console_on(stream)
    at = f"{plan.host.name} ({plan.host.chain})" if plan.host.name != str(plan.host.chain) else plan.host.name
    console.print(Text(f"{plan.pipeline.name} on {at}"), style="bold")
    console.print(table)
    console.print(Text(gpu_line(plan)))


def gpu_line(plan: Plan) -> str:
    """Which steps need GPUs, and how many, in a sentence."""
    names: dict[int, list[str]] = {}
    for each in plan.steps:
        if each.gpus:
            names.setdefault(each.gpus, []).append(each.step.name)
    if not names:
        return "No step needs a GPU."
    parts = [
        f"{', '.join(steps)} {'need' if len(steps) > 1 else 'needs'} {gpus_in_words(gpus)}"
        for gpus, steps in sorted(names.items(), reverse=True)
    ]
    sentence = f"{'; '.join(parts)}."
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
    figures += _busy(record)
    if again := record.get("replay"):
        figures.append(f"replay of {again['of']}: {again['said']}")
    for figure in figures:
        console.print(Text(figure))
    hosts = {step.get("host") for step in record["steps"]} - {None, "", record["host"]}
    table = _table("step", *["host"] * bool(hosts), "status", "time", "MB", "why")
    for step in record["steps"]:
        why = step["error"] or short_why(step["why"])
        state = Text(step["status"], style=_STYLES.get(step["status"], ""))
        host = [Text(step.get("host") or record["host"])] * bool(hosts)
        name, size = Text(step["name"]), f"{step['peak_rss_mb']:,.0f}"
        table.add_row(name, *host, state, clock(step["seconds"]), size, Text(why))
        attempts = step.get("attempts") or []
        for each in attempts if len(attempts) > 1 else ():
            told = Text(f"attempt {each['number']}: {each.get('error') or status_of(step, each)}")
            table.add_row("", *[""] * bool(hosts), "", clock(each["seconds"] or 0), "", told, style="dim")
    console.print(table)
    if made_from := _made_from(record):
        console.print(Text(made_from))
    console.print(Text(f"everything about it: {folder}"))


def _busy(record: Mapping[str, Any]) -> list[str]:
    """How busy the workers of each training were, a line each."""
    trainings = [step for step in record["steps"] if step["kind"] == "train"]
    found = [(step["name"], (step["result"] or {}).get("busy")) for step in trainings]
    return [(f"{name}: " if len(found) > 1 else "") + f"busy: {in_words(busy)}" for name, busy in found if busy]


def _made_from(record: Mapping[str, Any]) -> str:
    """What the run was made from, in a line."""
    commit = record.get("commit")
    gpus = (record.get("provenance") or {}).get("gpus") or {}
    parts = [
        commit and f"commit {commit[:12]}{' with changes' if record.get('dirty') else ''}",
        record.get("lock_id") and f"lock {record['lock_id'][:12]}",
        record.get("python") and f"Python {record['python']}",
        record.get("torch") and f"torch {record['torch']}",
        gpus.get("models") and f"{len(gpus['models'])} x {gpus['models'][0]}",
    ]
    return ", ".join(filter(None, parts))


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


def show_comparison(found: Comparison, stream: TextIO | None = None) -> None:
    """Two runs: their figures, their metrics at equal steps, and what differs."""
    console = console_on(stream)
    table = _table("figure", "a", "b", "change", right=("a", "b", "change"))
    for each in found.figures:
        values = ("" if value is None else shown(value, each.unit) for value in (each.a, each.b))
        table.add_row(Text(each.label), *values, change(each))
    console.print(Text(f"a: {found.a}\nb: {found.b}\n"), table)
    for training, steps in found.trainings.items():
        names = list(dict.fromkeys(name for met in steps for name in met.figures))
        heads = [f"{name} {side}" for name in names for side in "ab"]
        table = _table("step", *heads, right=("step", *heads))
        for met in steps:
            cells = [value for name in names for value in met.figures.get(name, (None, None))]
            table.add_row(f"{met.step:,}", *("" if value is None else f"{value:.6g}" for value in cells))
        console.print(Text(f"\n{training}, at equal steps"), table)
    for training in found.shared:
        console.print(Text(f"\n{training}: both have the same log, as one went on with the other's or found it made"))
    if found.files:
        table = _table("file", "a", "b")
        for file in found.files[:_MOST_FILES]:
            table.add_row(Text(file.name), *((content or "none")[:12] for content in (file.a, file.b)))
        if len(found.files) > _MOST_FILES:
            table.add_row(Text(f"and {len(found.files) - _MOST_FILES} more"))
        console.print(Text("\nmade otherwise"), table)
    if not found.differences:
        console.print("\nBoth were made from the same, as far as both records know.")
        return
    table = _table("field", "", "a", "b", "what it means")
    for one in found.differences:
        severity = Text(one.severity, style="red" if one.severity == "blocking" else "dim")
        sides = [Text(_brief(value)) for value in (one.old, one.new)]
        table.add_row(Text(one.field), severity, *sides, Text(one.cause))
    console.print(Text("\nmade from"), table)


def _brief(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def show_removals(removals: Sequence[Removal], stream: TextIO | None = None) -> None:
    """A line a folder, and what all of them take."""
    table = _table("what", "run", "MB", "folder")
    for each in removals:
        table.add_row(Text(each.what), Text(each.run), f"{each.bytes / 1e6:,.1f}", Text(str(each.folder)))
    console_on(stream).print(table)


def console_on(stream: TextIO | None = None) -> Console:
    """A console for tables on `stream` (default: standard output)."""
    stream = stream or sys.stdout
    # Off a terminal nothing is cut to a width that nobody has.
    return Console(file=stream, highlight=False, width=None if stream.isatty() else 200)


def _table(*names: str, right: Sequence[str] = ("time", "MB", "acceptance")) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left")
    return table
