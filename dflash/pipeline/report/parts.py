"""The page's tables and lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from dflash.pipeline.comparing import Difference
from dflash.pipeline.figures import change, paired, shown
from dflash.pipeline.report.charts import bars
from dflash.pipeline.report.timeline import status_of
from dflash.pipeline.view import clock

_MOST = 40
"""Differences, or entries of one part of the environment, that are shown."""


def table(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of plain texts; the columns `numbers` are set as numbers."""
    style = [' class="number"' if place in numbers else "" for place in range(len(names))]
    head = "".join(f'<th scope="col"{each}>{escape(name)}</th>' for name, each in zip(names, style, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{each}>{escape(cell)}</td>' for cell, each in zip(row, style, strict=True))}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def lead(text: str) -> str:
    """A sentence that a section begins with, if there is one."""
    return f'<p class="lead">{escape(text)}</p>' if text else ""


def faults(steps: Sequence[Mapping[str, Any]]) -> str:
    """What went wrong, first of all."""
    return "".join(
        f'<div class="card fault" role="alert"><b>{escape(step["status"])}</b> {escape(step["error"])}</div>'
        for step in steps
        if step.get("error")
    )


def steps(entries: Sequence[Mapping[str, Any]]) -> str:
    """What each step did and why; of one that was tried again, each attempt."""
    rows = "".join(map(_step, entries))
    head = '<th scope="col">step</th><th scope="col">status</th><th scope="col" class="number">time</th>'
    head += '<th scope="col" class="number part">MB</th><th scope="col">why</th>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _step(step: Mapping[str, Any]) -> str:
    status, seconds, size = escape(step["status"]), step["seconds"], step["peak_rss_mb"]
    return (
        f'<tr><td>{escape(step["name"])}</td><td class="{status}">{status}</td>'
        f'<td class="number">{clock(seconds) if seconds else ""}</td>'
        f'<td class="number part">{f"{size:,.0f}" if size else ""}</td>'
        f'<td class="why">{"<br>".join(escape(str(each)) for each in _reasons(step))}</td></tr>'
    )


def _reasons(step: Mapping[str, Any]) -> Iterator[str]:
    yield from step["why"]
    attempts = step.get("attempts") or []
    for each in attempts if len(attempts) > 1 else ():
        told = f": {each['error']}" if each.get("error") else ""
        status, took = status_of(step, each), clock(each["seconds"] or 0)
        yield f"attempt {each['number']} {status}" + (f" after {took}{told}" if status != "running" else "")


def decoding(result: Mapping[str, Any]) -> str:
    """What the evaluation's decoding gave, place by place in the block and prompt by prompt."""
    shares = bars("Accepted at each position", [("of those asked", "var(--one)", result.get("accepted_by_slot") or [])])
    lengths = sorted(result.get("acceptance_by_prompt") or [], reverse=True)
    told = [("tokens a second", _speeds(result)), ("prompts", str(result.get("prompts", "")))]
    if lengths:
        middle = lengths[len(lengths) // 2]
        told.append(("acceptance length by prompt", f"{lengths[-1]:.2f} to {lengths[0]:.2f}, median {middle:.2f}"))
    told += [(words, str(result[name])) for name, words in _DECODED if result.get(name) is not None]
    return f'<div class="grid">{shares}<div class="card">{pairs(told)}</div></div>'


_DECODED = (
    ("tokens", "tokens decoded"),
    ("rounds", "passes of the target"),
    ("new_tokens", "tokens after each prompt"),
)


def _speeds(result: Mapping[str, Any]) -> str:
    plain, fast = result.get("plain_tokens_per_s"), result.get("speculative_tokens_per_s")
    return "" if plain is None or fast is None else f"{fast:,.0f}; the target alone {plain:,.0f}"


def cache(result: Mapping[str, Any], trained: Mapping[str, Any]) -> str:
    """What pre-warm compiled or found, and what training met of it."""
    if "graphs" not in result:
        return ""
    found = trained.get("cache") or {}
    told = [
        ("graphs", str(result["graphs"])),
        ("hit rate in a fresh process", f"{result['hit_rate']:.0%}" if "hit_rate" in result else ""),
        ("compiled in", clock(result["compile_s"]) if "compile_s" in result else ""),
        ("proved in", clock(result["proof_s"]) if "proof_s" in result else ""),
        ("from the vault", "yes" if result.get("from_vault") else "no"),
        ("kept as", str(result.get("snapshot") or "")),
        ("size", f"{result['cache_bytes'] / 1e6:.1f} MB" if "cache_bytes" in result else ""),
        ("hits, misses in training", f"{found['autograd_hits']}, {found['autograd_misses']}" if found else ""),
    ]
    compiled = [each for each in result.get("compiled") or [] if each.get("compiled")]
    longest = max((each["seconds"] for each in compiled), default=0.0) or 1.0
    rows = "".join(
        f"<li><div>{escape(each['name'])}</div>"
        f'<svg width="100%" height="14" role="img" aria-label="{escape(each["name"])} of {escape(each["worker"])}: '
        f'{each["seconds"]:.1f} seconds"><rect x="0" y="2" height="10" rx="2" width="{each["seconds"] / longest:.2%}">'
        f"<title>{escape(each['worker'])}: {escape(str(each.get('inputs', '')))}</title></rect></svg>"
        f"<span>{each['seconds']:.1f} s</span></li>"
        for each in compiled
    )
    graphs = f'<div class="card"><h3>Seconds a graph</h3><ul class="bars">{rows}</ul></div>' if rows else ""
    return f'<div class="grid"><div class="card">{pairs(told)}</div>{graphs}</div>'


def differences(found: Sequence[Difference]) -> str:
    """What the run was made from otherwise than the run before."""
    if not found:
        return "<p>It was made from the same, as far as both records know.</p>"
    rows = [
        f'<tr><td class="mono">{escape(each.field)}</td><td class="{each.severity}">{each.severity}</td>'
        f'<td class="mono">{escape(_value(each.old))}</td>'
        f'<td class="mono">{escape(_value(each.new))}</td><td class="why">{escape(each.cause)}</td></tr>'
        for each in found[:_MOST]
    ]
    more = f'<p class="lead">and {len(found) - _MOST} more</p>' if len(found) > _MOST else ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("field", "severity", "before", "now", "what it means"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The figures that both runs have, side by side."""
    rows = [
        [each.label, shown(each.a, each.unit), shown(each.b, each.unit), change(each)]
        for each in paired(old, new)
        if each.a is not None and each.b is not None
    ]
    return table(["figure", "before", "now", "change"], rows, numbers=(1, 2, 3)) if rows else ""


def environment(record: Mapping[str, Any]) -> str:
    """What the run was made from and ran in: its provenance, or what a record from before there was any has of it."""
    known = [
        (
            "commit",
            f"{record['commit']}{', with changes' if record.get('dirty') else ''}" if record.get("commit") else "",
        ),
        ("lock", record.get("lock_id") or ""),
        ("Python", record.get("python") or ""),
        ("torch", record.get("torch") or ""),
        ("root", record.get("root") or ""),
    ]
    provenance = record.get("provenance") or {}
    return pairs(known) + "".join(_part(name, part) for name, part in provenance.items() if part)


def _part(name: str, part: Any) -> str:
    entries = list(_flat(part))
    shown_entries = [(path, _value(value)) for path, value in entries[:_MOST]]
    more = f"<p>and {len(entries) - _MOST} more, in record.json</p>" if len(entries) > _MOST else ""
    count = f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}"
    return f"<details><summary>{escape(name)} <span>{count}</span></summary>{pairs(shown_entries)}{more}</details>"


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _flat(each, f"{path}.{name}" if path else str(name))
    elif value not in (None, "", []):
        yield path, value


def pairs(told: Sequence[tuple[str, str]]) -> str:
    """A list of names with their values; those without one are left out."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in told if value)
    return f"<dl>{rows}</dl>" if rows else ""


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "…"
