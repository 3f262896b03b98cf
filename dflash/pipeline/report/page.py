"""The page: HTML from what `contents.gather` has found, and nothing else. Nothing is asked of any network, and no
script runs: what a pointer rests on is told by SVG's own titles."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from dflash.pipeline.report import parts
from dflash.pipeline.report.contents import Contents
from dflash.pipeline.report.style import STYLE
from dflash.pipeline.report.timeline import timeline
from dflash.pipeline.report.training import curves
from dflash.pipeline.view import clock


def page(contents: Contents) -> str:
    """The whole page."""
    record = contents.record
    title, state = escape(str(record["id"])), escape(str(record["status"]))
    where = f"pipeline {escape(str(record['pipeline']))}, host {escape(str(record['host']))}"
    host = str(record["host"])
    sections = [
        _section("Where the time went", _card(timeline(record["steps"], contents.spans, host))),
        *(_section(_title("Training", each.step, contents), curves(each, record)) for each in contents.trainings),
        *_evaluations(record),
        *_caches(record),
        _section("Steps", _card(parts.steps(record["steps"]), "wide")),
        *_differences(contents),
        _section("Environment", _card(parts.environment(record))),
    ]
    return "".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<title>{title}: {state}</title><style>{STYLE}</style><link rel="icon" href="data:,"></head><body><main>',
            f'<header><h1>{title} <span class="state {state}">{state}</span></h1>',
            f'<p class="lead">{where}, started {escape(_moment(record["started"]))}</p></header>',
            parts.faults(record["steps"]),
            f'<ul class="tiles" aria-label="Figures">{"".join(_tiles(contents))}</ul>',
            *sections,
            "</main></body></html>\n",
        ]
    )


def _moment(started: str) -> str:
    return started.replace("T", " ").replace("Z", " UTC")


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _card(body: str, style: str = "") -> str:
    return f'<div class="card {style}">{body}</div>' if body else ""


def _title(word: str, step: Mapping[str, Any], contents: Contents) -> str:
    """The word, with the step's name where several steps have a section of this kind."""
    several = sum(each["kind"] == step["kind"] for each in contents.record["steps"]) > 1
    return f"{word}: {step['name']}" if several else word


def _tiles(contents: Contents) -> list[str]:
    record, tiles = contents.record, []
    if (length := record.get("acceptance_length")) is not None:
        untrained = record.get("acceptance_length_untrained")
        note = "" if untrained is None else f", untrained {untrained:.2f}"
        tiles.append((f"{length:.2f}", f"acceptance length{note}"))
    if (total := record.get("greedy_total")) is not None:
        tiles.append((f"{record.get('greedy_identical')}/{total}", "outputs equal to the target's own"))
    for result in _results(record, "evaluate"):
        if "speedup" in result:
            tiles.append((f"{result['speedup']:.2f}×", "as fast as the target alone"))
    for each in contents.trainings:
        if "tokens_per_s" in each.samples.last:
            tiles.append((f"{each.samples.last['tokens_per_s']:,.0f}", "tokens a second, training"))
    for result in _results(record, "prewarm"):
        if "hit_rate" in result:
            tiles.append((f"{result['hit_rate']:.0%}", f"of {result.get('graphs', '?')} graphs hit the cache"))
    tiles.append((clock(record["wall_s"]), "wall time"))
    tiles.append((f"{record['peak_rss_mb'] / 1000:.2f} GB", "peak memory"))
    return [f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for value, name in tiles]


def _results(record: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    return [step["result"] for step in record["steps"] if step["kind"] == kind and isinstance(step["result"], dict)]


def _evaluations(record: Mapping[str, Any]) -> list[str]:
    return [_section("Decoding", parts.decoding(result)) for result in _results(record, "evaluate")]


def _caches(record: Mapping[str, Any]) -> list[str]:
    trained = _results(record, "train")
    return [
        _section("Compile cache", parts.cache(result, trained[index] if index < len(trained) else {}))
        for index, result in enumerate(_results(record, "prewarm"))
    ]


def _differences(contents: Contents) -> list[str]:
    if not contents.previous:
        return []
    run = contents.previous
    lead = f'<p class="lead">{escape(str(run["id"]))}, which was {escape(str(run["status"]))}</p>'
    body = parts.differences(contents.differences)
    figures = parts.changes(run, contents.record)
    return [_section("Since the run before", lead + _card(figures, "wide") + _card(body, "wide"))]
