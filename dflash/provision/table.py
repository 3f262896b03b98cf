"""Findings as a table a person can act on."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dflash.finding import Finding, worst_first

_MARKS = {"ok": Text("ok", "green"), "warn": Text("warning", "yellow"), "block": Text("WRONG", "bold red")}


def findings_of(result: Mapping[str, Any]) -> list[Finding]:
    """The findings in `check`'s result, or in a record of it."""
    return [Finding(**each) for each in result["findings"]]


def table(findings: Iterable[Finding]) -> Table:
    """One row a finding, worst first, with layer and cause where there are layers. Text is not interpreted as markup:
    it may hold a path with brackets."""
    known = worst_first(findings)
    layered = any(each.layer for each in known)
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("", *(["layer"] if layered else []), "what", "found", "what to do"):
        shown.add_column(heading, overflow="fold")
    for each in known:
        found = Text(each.found)
        if layered and each.cause and each.severity != "ok":
            found.append(f"\n{each.cause}", "dim")
        where = [Text(each.layer)] if layered else []
        shown.add_row(_MARKS[each.severity], *where, Text(each.subject), found, Text(each.cure))
    return shown


def lines_of(result: Mapping[str, Any], width: int = 110) -> list[str]:
    """The table of `check`'s result as plain lines of at most `width` characters, for a log."""
    text = io.StringIO()
    print_table(findings_of(result), Console(file=text, width=width, no_color=True))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def print_table(findings: Iterable[Finding], console: Console) -> None:
    """Print the table, then one line that sums it up."""
    known = list(findings)
    wrong = sum(each.severity == "block" for each in known)
    warnings = sum(each.severity == "warn" for each in known)
    console.print(table(known))
    parts = [f"{wrong} wrong" if wrong else "nothing wrong"]
    if warnings:
        parts.append(f"{warnings} warning{'s' if warnings > 1 else ''}")
    console.print(Text(f"{len(known)} checks: {', '.join(parts)}"))
