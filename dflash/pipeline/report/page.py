"""The page: HTML from what `contents.gather` has found, and nothing else. Nothing is asked of any network, and no
script runs: what a pointer rests on is told by SVG's own titles."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from dflash.pipeline.report import parts
from dflash.pipeline.report.contents import Contents, counterpart
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
        *(
            _section(_title("Training", each.step, contents), parts.lead(str(each.share)) + curves(each, record))
            for each in contents.trainings
        ),
        *(_section(_title("Training", step, contents), parts.lead(str(share))) for step, share in contents.lost),
        *_evaluations(contents),
        *_caches(contents),
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
    for step, figures in _judged(record):
        if (length := figures.get("acceptance_length")) is not None:
            untrained = figures.get("acceptance_length_untrained")
            note = "" if untrained is None else f", untrained {untrained:.2f}"
            tiles.append((f"{length:.2f}", _title(f"acceptance length{note}", step, contents)))
        if (total := figures.get("greedy_total")) is not None:
            words = _title("outputs equal to the target's own", step, contents)
            tiles.append((f"{figures.get('greedy_identical')}/{total}", words))
    for step in _made(record, "evaluate"):
        if "speedup" in step["result"]:
            words = _title("as fast as the target alone", step, contents)
            tiles.append((f"{step['result']['speedup']:.2f}×", words))
    for each in contents.trainings:
        if "tokens_per_s" in each.samples.last:
            words = _title("tokens a second, training", each.step, contents)
            tiles.append((f"{each.samples.last['tokens_per_s']:,.0f}", words))
    for step in _made(record, "prewarm"):
        if "hit_rate" in step["result"] and (graphs := step["result"].get("graphs", "?")):
            words = _title(f"of {graphs} graphs hit the cache", step, contents)
            tiles.append((f"{step['result']['hit_rate']:.0%}", words))
    tiles.append((clock(record["wall_s"]), "wall time"))
    tiles.append((f"{record['peak_rss_mb'] / 1000:.2f} GB", "peak memory"))
    return [f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for value, name in tiles]


def _judged(record: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each evaluation, and where its figures are: of one alone they are the run's."""
    evaluations = [step for step in record["steps"] if step["kind"] == "evaluate"]
    if len(evaluations) == 1:
        return [(evaluations[0], record)]
    return [(step, step["result"]) for step in _made(record, "evaluate")]


def _made(record: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    """The steps of a kind that have a result."""
    return [step for step in record["steps"] if step["kind"] == kind and isinstance(step["result"], dict)]


def _evaluations(contents: Contents) -> list[str]:
    return [
        _section(_title("Decoding", step, contents), parts.decoding(step["result"]))
        for step in _made(contents.record, "evaluate")
    ]


def _caches(contents: Contents) -> list[str]:
    record = contents.record
    return [
        _section(
            _title("Compile cache", step, contents), parts.cache(step["result"], counterpart(record, step, "train"))
        )
        for step in _made(record, "prewarm")
    ]


def _differences(contents: Contents) -> list[str]:
    if not contents.previous:
        return []
    run = contents.previous
    lead = parts.lead(f"{run['id']}, which was {run['status']}")
    body = parts.differences(contents.differences)
    figures = parts.changes(run, contents.record)
    return [_section("Since the run before", lead + _card(figures, "wide") + _card(body, "wide"))]
