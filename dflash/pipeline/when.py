"""Whether a step's condition holds, as far as that is known when a run is planned, and when it is the step's turn."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dflash.hosts.inventory import Host
from dflash.pipeline.condition import HOST, WORDS, WhenFault, parsed, parts, paths
from dflash.pipeline.matrix import declared_name
from dflash.pipeline.schema import Pipeline, Step, error_at
from dflash.validation import suggestion

_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}


def planned_when(step: Step, host: Host, pipeline: Pipeline) -> bool | None:
    """Whether a step's condition holds, as far as that is known when planning: None where it asks for steps or for
    `failed`. Raises UsageError, as `decide_when` does."""
    if not step.when:
        return True
    if any(path[0] in ("steps", "failed") for _, path in paths(parsed(step.when))):
        return None
    return decide_when(step, {"host": host_facts(host)}, pipeline)


def decide_when(step: Step, facts: Mapping[str, Any], pipeline: Pipeline) -> bool:
    """Whether a step's condition holds; an empty one does.

    `facts` has "host" (see `host_facts`), "steps" (by name, maps that have "status" and "result", as in a record), and
    "failed": whether a step failed before. Raises UsageError, with the condition's place in the file, where two values
    can not be compared, or where a result lacks a field.
    """
    if not step.when:
        return True
    try:
        return bool(_value(parsed(step.when), {"matrix": step.matrix, **facts}))
    except WhenFault as failure:
        raise error_at(pipeline, step, ("when",), f"{failure.what}, in {step.name}", failure.cure) from None


def host_facts(host: Host) -> dict[str, Any]:
    """What a condition sees of a host."""
    return {name: getattr(host, name) for name in HOST}


def unmet_need(step: Step, left_out: Collection[str]) -> str | None:
    """Why a step is left out for what it needs: all the steps that one of its needs stands for are among `left_out`. A
    step of `finally` is never left out for that."""
    if step.is_last:
        return None
    stands_for: dict[str, list[bool]] = {}
    for need in step.needs:
        stands_for.setdefault(declared_name(need), []).append(need in left_out)
    return next((f"it needs {name}, which is left out" for name, each in stands_for.items() if all(each)), None)


def unmet_condition(step: Step) -> str:
    """Why a step is left out whose condition does not hold."""
    return f"it runs only if {step.when}"


def _value(node: ast.expr, facts: Mapping[str, Any]) -> Any:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(each, facts) for each in values)
        case ast.BoolOp(values=values):
            return any(_value(each, facts) for each in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, facts)
        case ast.UnaryOp(operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(each, facts) for each in elements]
        case ast.Constant(value=value):
            return value
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [_value(each, facts) for each in (left, *others)]
            return all(_compared(op, *pair) for op, *pair in zip(ops, values, values[1:], strict=False))
    return _fact(parts(node), facts)


def _compared(op: ast.cmpop, one: Any, other: Any) -> Any:
    try:
        return _COMPARED[type(op)](one, other)
    except TypeError:
        cure = "compare numbers with numbers and texts with texts"
        raise WhenFault(f"{one!r} and {other!r} can not be compared so", cure=cure) from None


def _fact(path: tuple[str, ...], facts: Mapping[str, Any]) -> Any:
    if len(path) == 1 and path[0] in WORDS:
        return WORDS[path[0]]
    if path[0] != "steps":
        value: Any = facts
        for name in path:
            value = value[name]
        return value
    _, step, *rest = path
    ended = facts["steps"][step]
    if rest == ["status"]:
        return "ok" if ended["status"] == "skipped" else ended["status"]
    value = ended["result"]
    for name in rest if value is not None else ():
        if not isinstance(value, Mapping) or name not in value:
            known = value if isinstance(value, Mapping) else ()
            what = f"the result of {step!r} has no {'.'.join(rest)!r}"
            raise WhenFault(what, cure=suggestion(name, map(str, known), "results"))
        value = value[name]
    return value
