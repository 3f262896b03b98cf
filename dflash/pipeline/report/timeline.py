"""When each step of a run was at work: a bar for each attempt, a row for each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from dflash.pipeline.report.charts import ticks
from dflash.pipeline.view import clock


@dataclass(frozen=True)
class Span:
    """An attempt at a step: when it started, in unix time, what it took, and how it ended."""

    started: float
    seconds: float
    status: str
    told: str = ""


def spans_of(step: Mapping[str, Any], begun: float | None, until: float | None) -> list[Span]:
    """The attempts of a record's step; of one from before attempts were noted, the step as a whole, which began when
    its event says. What still runs goes on `until` now."""
    attempts = step.get("attempts") or []
    if not attempts:
        started = step.get("started") or begun
        if started is None or step["status"] in ("pending", "skipped"):
            return []
        return [Span(started, _length(step, started, until), step["status"])]
    return [
        Span(each["started"], _length(each, each["started"], until), status_of(step, each), _told(each))
        for each in attempts
    ]


def status_of(step: Mapping[str, Any], attempt: Mapping[str, Any]) -> str:
    """The status of an attempt at a step. One that is at work is noted as interrupted until it has ended."""
    is_at_work = step["status"] == "running" and attempt is step["attempts"][-1]
    return "running" if is_at_work else str(attempt["status"])


def _length(what: Mapping[str, Any], started: float, until: float | None) -> float:
    seconds = what.get("seconds") or 0.0
    return max(0.0, until - started) if until and not seconds else float(seconds)


def _told(attempt: Mapping[str, Any]) -> str:
    reason = attempt.get("reason")
    words = {"no_output": "said nothing for too long", "timeout": "took too long", "lost": "its machine was lost"}
    words |= {"unheard": "the run ended without a word; it was last heard of then"}
    words |= {"memory": "out of memory", "exit": f"exit status {attempt.get('exit_code')}"}
    return f"attempt {attempt['number']}" + (f": {words.get(reason, reason)}" if reason else "")


def timeline(steps: Sequence[Mapping[str, Any]], spans: Mapping[str, Sequence[Span]], host: str) -> str:
    """The rows. `spans` are by step; `host` is that of the steps which name none."""
    known = [span for each in spans.values() for span in each]
    start = min((span.started for span in known), default=0.0)
    end = max((span.started + span.seconds for span in known), default=1.0)
    whole = max(end - start, 0.001)
    rows = "".join(_row(step, spans.get(step["name"], ()), start, whole, step.get("host") or host) for step in steps)
    marks = "".join(
        f'<span style="left:{tick / whole:.2%}">{_moment(tick)}</span>'
        for tick in _moments(whole)
        if tick / whole <= 0.97 or tick == 0
    )
    axis = f'<li class="axis" aria-hidden="true"><div></div><div class="marks">{marks}</div><div></div></li>'
    return f'<ol class="timeline">{rows}{axis if known else ""}</ol>'


def _row(step: Mapping[str, Any], spans: Sequence[Span], start: float, whole: float, host: str) -> str:
    bars = "".join(_bars(step["name"], spans, start, whole))
    where = f"{host}, {launcher}" if (launcher := _launcher(step)) else host
    times = f" in {len(spans)} attempts" if len(spans) > 1 else ""
    heard = f"{step['name']} on {where}: {step['status']}{times}, {clock(step['seconds'])}"
    took = clock(step["seconds"]) if spans else step["status"]
    return (
        f'<li><div class="who"><b>{escape(step["name"])}</b> <span>{escape(where)}</span></div>'
        f'<svg role="img" aria-label="{escape(heard)}" width="100%" height="20">{bars}</svg>'
        f'<div class="took {escape(step["status"])}">{escape(took)}</div></li>'
    )


def _launcher(step: Mapping[str, Any]) -> str:
    """What started a training's workers, where the step declares it: the kind, of a record that has its settings."""
    declared = step.get("launcher") or ""
    return str(declared["kind"] if isinstance(declared, Mapping) else declared)


def _bars(name: str, spans: Sequence[Span], start: float, whole: float) -> Iterator[str]:
    for span in spans:
        hint = f"{name}, {span.told + ', ' if span.told else ''}{span.status}: {clock(span.seconds)}"
        hint += f", from {_moment(span.started - start)} on"
        yield (
            f'<rect class="{escape(span.status)}" x="{(span.started - start) / whole:.3%}" y="2" rx="2" height="16" '
            f'width="{max(span.seconds / whole, 0.004):.3%}"><title>{escape(hint)}</title></rect>'
        )


def _moments(whole: float) -> Sequence[float]:
    """Round times from 0 on, four to eight of them."""
    for unit in (1, 60, 3600, 86400):
        for size in (1, 2, 5, 10, 15, 30):
            if whole / (unit * size) <= 6:
                return [unit * size * index for index in range(int(whole / (unit * size)) + 1)]
    return ticks(0, whole, 5)


def _moment(seconds: float) -> str:
    """`0`, `40 s`, `3:20`, `2 h`, `1:30 h`, `3 d`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if whole else "0"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    hours, minutes = divmod(whole // 60, 60)
    if hours < 48:
        return f"{hours}:{minutes:02} h" if minutes else f"{hours} h"
    return f"{hours / 24:.1f} d".replace(".0 d", " d")
