"""The figures that a run is judged by, from its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from dflash.pipeline.view import clock


@dataclass(frozen=True)
class Figure:
    """A figure of a run: its name, as a record has it or with its step before a dot, and how a person reads it."""

    name: str
    label: str
    value: float
    unit: str = ""


@dataclass(frozen=True)
class Pair:
    """A figure of two runs, a and b; None where one does not have it."""

    name: str
    label: str
    unit: str
    a: float | None
    b: float | None


def shown(value: float, unit: str) -> str:
    """A value with its unit: `3.79`, `100%`, `4:49`, `1.65 GB`, `11,796 tokens/s`."""
    if unit == "s":
        return clock(value)
    if unit == "%":
        return f"{value:.0%}"
    if unit == "MB":
        return f"{value / 1000:.2f} GB"
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{number} {unit}" if unit else number


def change(pair: Pair) -> str:
    """How b differs from a: `same`, `+12.5%`, or nothing where that can not be told."""
    if pair.a is None or pair.b is None:
        return ""
    if pair.a == pair.b:
        return "same"
    return f"{(pair.b - pair.a) / abs(pair.a):+.1%}" if pair.a else ""


_JUDGED = (
    ("acceptance_length", "acceptance length", ""),
    ("acceptance_length_untrained", "acceptance length, untrained", ""),
    ("greedy_identical", "outputs equal to the target's own", ""),
)
"""Of the run where it has one evaluation; of each where it has several, as the run's are then those of the last."""

_OF_RUN = (
    ("wall_s", "wall time", "s"),
    ("peak_rss_mb", "peak memory", "MB"),
)
_OF_STEP = {
    "evaluate": (
        ("speedup", "speedup", ""),
        ("speculative_tokens_per_s", "tokens a second, decoding", "tokens/s"),
    ),
    "train": (
        ("step", "steps", ""),
        ("loss", "loss", ""),
        ("heldout.loss", "loss, held out", ""),
        ("accept_len", "acceptance length, simulated", ""),
        ("heldout.accept_len", "acceptance length, simulated, held out", ""),
        ("tokens_per_s", "tokens a second, training", "tokens/s"),
        ("busy.target", "targets busy", "%"),
        ("busy.drafter", "drafters busy", "%"),
        ("busy.target and drafter", "workers busy", "%"),
    ),
    "prewarm": (
        ("graphs", "graphs", ""),
        ("hit_rate", "cache hits", "%"),
        ("compile_s", "compiling", "s"),
    ),
}


def figures(record: Mapping[str, Any]) -> list[Figure]:
    """All that the record has: of the run, of its steps' results, and each step's time."""
    return [*_figures(record)]


def paired(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Pair]:
    """The figures of two records, in the order of the first."""
    one, other = ({each.name: each for each in figures(record)} for record in (a, b))
    return [_pair(one.get(name), other.get(name)) for name in dict.fromkeys([*one, *other])]


def _pair(a: Figure | None, b: Figure | None) -> Pair:
    known = a or b
    assert known is not None
    return Pair(known.name, known.label, known.unit, a.value if a else None, b.value if b else None)


def _figures(record: Mapping[str, Any]) -> Iterator[Figure]:
    several = sum(step["kind"] == "evaluate" for step in record["steps"]) > 1
    for name, label, unit in (*(() if several else _JUDGED), *_OF_RUN):
        if _is_number(value := record.get(name)):
            yield Figure(name, label, value, unit)
    for step in record["steps"]:
        judged = _JUDGED if several and step["kind"] == "evaluate" else ()
        for name, label, unit in (*judged, *_OF_STEP.get(step["kind"], ())):
            if _is_number(value := _at(step["result"], name)):
                yield Figure(f"{step['name']}.{name}", f"{step['name']}: {label}", value, unit)
    for step in record["steps"]:
        if step["seconds"]:
            yield Figure(f"{step['name']}.seconds", f"{step['name']}: time", step["seconds"], "s")


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
