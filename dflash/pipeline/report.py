"""A run as one HTML page that needs nothing else: figures, charts drawn as SVG, and what each step did.

`page` is a pure function of the record and of the training step's metrics.jsonl, whose rows are
{"step", "loss", "accuracy": [by position], "accept_len", "tokens_per_s", "lr", "heldout": {"loss", "accuracy",
"accept_len"}}; rows may lack any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from dflash.pipeline.charts import bars, line
from dflash.pipeline.view import clock

_STYLE = """
:root { color-scheme: light dark; --page: #f9f9f7; --card: #fcfcfb; --edge: #e1e0d9; --ink: #0b0b0b;
  --soft: #52514e; --faint: #898781; --axis: #c3c2b7; --grid: #e1e0d9; --line: #2a78d6; --good: #006300;
  --bad: #d03b3b; }
@media (prefers-color-scheme: dark) { :root { --page: #0d0d0d; --card: #1a1a19; --edge: #2c2c2a; --ink: #fff;
  --soft: #c3c2b7; --faint: #898781; --axis: #383835; --grid: #2c2c2a; --line: #3987e5; --good: #0ca30c;
  --bad: #e66767; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 20px 16px 48px; max-width: 980px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 20px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 15px; margin: 0 0 6px; }
.soft { color: var(--soft); margin: 2px 0 18px; } .cards { display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); margin-bottom: 12px; }
.tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr));
  margin-bottom: 12px; }
.card, .tile { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: 14px; }
.tile b { display: block; font-size: 24px; white-space: nowrap; font-weight: 600; line-height: 1.25; }
.tile span { color: var(--soft); font-size: 13px; } .wide { overflow-x: auto; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px;
  font-family: inherit; } svg .value { fill: var(--ink); font-weight: 600;
  paint-order: stroke; stroke: var(--card); stroke-width: 3px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { color: var(--soft); font-weight: 500; }
th, td { text-align: left; padding: 6px 12px 6px 0; vertical-align: top; border-top: 1px solid var(--edge); }
tr:first-child th { border-top: 0; } td.number, th.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; } td.why { color: var(--soft); overflow-wrap: anywhere; }
.failed, .interrupted { color: var(--bad); font-weight: 600; } .ok { color: var(--good); }
"""


def page(record: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page's HTML."""
    title = escape(str(record["id"]))
    state = escape(str(record["status"]))
    where = f"{escape(str(record['pipeline']))} on {escape(str(record['host']))}"
    return "".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<title>{title}</title><style>{_STYLE}</style><link rel="icon" href="data:,"></head><body>',
            f'<h1>{title} <span class="{state}">{state}</span></h1>',
            f'<p class="soft">{where}, started {escape(str(record["started"]))}</p>',
            f'<div class="tiles">{"".join(_tiles(record))}</div>',
            f'<div class="cards">{"".join(_charts(metrics))}</div>',
            f'<div class="card wide"><h2>Steps</h2>{_steps(record["steps"])}</div>',
            f'<p class="soft">{_made_from(record)}</p></body></html>\n',
        ]
    )


def _tiles(record: Mapping[str, Any]) -> list[str]:
    tiles = []
    if (length := record.get("acceptance_length")) is not None:
        untrained = record.get("acceptance_length_untrained")
        note = "" if untrained is None else f" ({untrained:.2f} untrained)"
        tiles.append((f"{length:.2f}", f"acceptance length{note}"))
    if (total := record.get("greedy_total")) is not None:
        tiles.append((f"{record.get('greedy_identical')}/{total}", "outputs equal to the target's own"))
    tiles.append((clock(record["wall_s"]), "wall time"))
    tiles.append((f"{record['peak_rss_mb'] / 1000:.2f} GB", "peak memory"))
    return [f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for value, name in tiles]


def _charts(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    measured = [{**row["heldout"], "step": row.get("step")} for row in metrics if isinstance(row.get("heldout"), dict)]
    charts = []
    for rows, field, title in (
        (metrics, "loss", "Training loss"),
        (metrics, "accept_len", "Simulated acceptance length"),
        (measured, "loss", "Loss on held-out rows"),
        (measured, "accept_len", "Simulated acceptance length on held-out rows"),
    ):
        points = [(float(row["step"]), float(row[field])) for row in rows if _number(row.get(field), row.get("step"))]
        if points:
            charts.append((f"{title}, by step", line(points, title)))
    last = next((row["accuracy"] for row in reversed(metrics) if _shares(row.get("accuracy"))), None)
    if last:
        charts.append(("Accuracy by position in the block, last step", bars(last, "Accuracy by position")))
    return [f'<div class="card"><h2>{title}</h2>{svg}</div>' for title, svg in charts]


def _number(*values: Any) -> bool:
    return all(isinstance(value, int | float) and abs(value) < float("inf") for value in values)


def _shares(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and _number(*values)


def _steps(steps: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        f"<tr><td>{escape(step['name'])}</td>"
        f'<td class="{escape(step["status"])}">{escape(step["status"])}</td>'
        f'<td class="number">{clock(step["seconds"])}</td>'
        f'<td class="number">{step["peak_rss_mb"]:,.0f}</td>'
        f'<td class="why">{"<br>".join(escape(str(each)) for each in _reasons(step))}</td></tr>'
        for step in steps
    ]
    names = ("step", "status", "time", "MB", "why")
    head = "".join(f'<th class="{"number" * (name in ("time", "MB"))}">{name}</th>' for name in names)
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _reasons(step: Mapping[str, Any]) -> list[str]:
    return ([step["error"]] if step.get("error") else []) + list(step["why"])


def _made_from(record: Mapping[str, Any]) -> str:
    parts = [
        f"commit {record['commit'][:12]}{' with changes' if record.get('dirty') else ''}"
        if record.get("commit")
        else "",
        f"lock {record['lock_id'][:12]}" if record.get("lock_id") else "",
        f"Python {record['python']}" if record.get("python") else "",
        f"torch {record['torch']}" if record.get("torch") else "",
    ]
    return escape(", ".join(part for part in parts if part))
