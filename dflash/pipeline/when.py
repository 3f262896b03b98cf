"""`when`: a small language of conditions that reads facts and does nothing.

    when: matrix.seed == 1 or host.gpus >= 8
    when: steps.evaluate.acceptance_length > 2.5 and steps['train@seed=1'].status == 'ok'
    when: failed                                    in finally: only

Names, texts, numbers, true, false, null, lists, comparisons (in and not in, too), and, or, not. `matrix` is the step's
own combination, `host` the one that the run is on, `steps` those that the step needs, with their status ("ok", also
where it was done before; "failed", "interrupted", "left out"; in finally: also "blocked" by what it needed, and
"pending" where a stop came first) and the fields of their results, which are null where there is no result: ask for the
status before you ask whether one is more or less than a number, which null can not answer.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dflash.errors import UsageError
from dflash.hosts.inventory import Host
from dflash.pipeline.matrix import declared_name
from dflash.validation import suggestion

if TYPE_CHECKING:
    from dflash.pipeline.schema import Step

_HOST = ("name", "gpus")
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
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
_LONGEST = 1000


class WhenFault(Exception):
    """A condition that can not be followed: `what`, at which character of it (from 0), and what to do."""

    def __init__(self, what: str, offset: int = 0, cure: str | None = None) -> None:
        super().__init__(what)
        self.what, self.offset, self.cure = what, offset, cure


def check_when(
    text: str, matrix: Collection[str], needs: Mapping[str, Sequence[str]], steps: Collection[str], is_last: bool
) -> str:
    """The condition, with each step's name as that of the very step that is meant.

    `matrix` are the names that its step's matrix has; `needs` maps each need, as declared, to the steps that it stands
    for; `steps` are all that are declared. Raises WhenFault.
    """
    if not text:
        return text
    tree = _parsed(text)
    renamed: dict[str, str] = {}
    for node, path in _paths(tree):
        offset = _offset(text, node)
        if path[0] == "steps" and len(path) > 1 and path[1] is not None:
            renamed[path[1]] = _step_meant(path[1], offset, needs, steps)
        _check_path(path, offset, matrix, is_last)
    if all(name == meant for name, meant in renamed.items()):
        return text
    return ast.unparse(_Renaming(renamed).visit(ast.parse(_whole(text), mode="eval")))


def planned_when(step: Step, host: Host) -> bool | None:
    """Whether a step's condition holds, as far as that is known when planning: None where it asks for steps or for
    `failed`. Raises UsageError."""
    if not step.when:
        return True
    if any(path[0] in ("steps", "failed") for _, path in _paths(_parsed(step.when))):
        return None
    return decide_when(step, {"host": host_facts(host)})


def decide_when(step: Step, facts: Mapping[str, Any]) -> bool:
    """Whether a step's condition holds; an empty one does.

    `facts` has "host" (see `host_facts`), "steps" (by name, maps that have "status" and "result", as in a record), and
    "failed": whether a step failed before. Raises UsageError where two values can not be compared, or where a result
    lacks a field.
    """
    if not step.when:
        return True
    try:
        return bool(_value(_parsed(step.when), {"matrix": step.matrix, **facts}))
    except WhenFault as failure:
        raise UsageError(failure.what, where=f"step {step.name}: when: {step.when}", cure=failure.cure) from None


def host_facts(host: Host) -> dict[str, Any]:
    """What a condition sees of a host."""
    return {name: getattr(host, name) for name in _HOST}


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


def _whole(text: str) -> str:
    """The text on one line, without changing where a character is."""
    return text.replace("\n", " ").replace("\t", " ")


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise WhenFault(f"a condition has {_LONGEST} characters at most, not {len(text)}")
    if "${{" in text:
        raise WhenFault("a condition reads the matrix as it is", text.index("${{"), "write matrix.NAME without ${{ }}")
    blank = len(text) - len(text.lstrip())
    try:
        tree = ast.parse(_whole(text).strip(), mode="eval").body
        _check_node(tree, text)
    except SyntaxError as failure:
        at = blank + max(0, (failure.offset or 1) - 1)
        raise WhenFault(f"this is no condition: {failure.msg}", min(at, len(text) - 1)) from None
    except (ValueError, RecursionError, MemoryError):
        raise WhenFault("this is no condition") from None
    return tree


def _check_node(node: ast.expr, text: str) -> None:
    """Raise WhenFault for anything that the language does not have."""
    inner: Sequence[ast.expr] = ()
    match node:
        case ast.BoolOp(values=inner) | ast.List(elts=inner) | ast.Tuple(elts=inner):
            pass
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = [operand]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            pass
        case ast.Compare(left=left, comparators=others):
            inner = [left, *others]
            if not all(type(each) in _COMPARED for each in node.ops):
                raise WhenFault("a condition has no 'is'", _offset(text, node), "write == or !=")
        case ast.Constant(value=str() | int() | float() | None):
            pass
        case ast.Name() | ast.Attribute() | ast.Subscript() if _path(node):
            pass
        case _:
            cure = "write comparisons of names and values, joined by and, or, not"
            raise WhenFault(f"a condition has no {_kind(node)}", _offset(text, node), cure)
    for each in inner:
        _check_node(each, text)


def _kind(node: ast.expr) -> str:
    names = {"BinOp": "arithmetic", "JoinedStr": "f-strings", "IfExp": "if", "Call": "calls", "Dict": "maps"}
    return names.get(type(node).__name__, f"{type(node).__name__.lower()} like this")


def _offset(text: str, node: ast.expr) -> int:
    stripped = _whole(text).strip()
    return len(text) - len(text.lstrip()) + len(stripped.encode()[: node.col_offset].decode())


def _path(node: ast.expr) -> tuple[str, ...]:
    """`a.b['c']` as its parts; empty for anything else."""
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=base, attr=name) | ast.Subscript(value=base, slice=ast.Constant(value=str() as name)):
            before = _path(base)
            return (*before, name) if before else ()
    return ()


def _paths(node: ast.expr) -> list[tuple[ast.expr, tuple[str, ...]]]:
    """Every name that a checked condition reads, with its parts."""
    path = _path(node)
    if path:
        return [] if len(path) == 1 and path[0] in _WORDS else [(node, path)]
    return [found for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr) for found in _paths(each)]


def _step_meant(name: str, offset: int, needs: Mapping[str, Sequence[str]], steps: Collection[str]) -> str:
    if name in needs:
        if len(needs[name]) == 1:
            return needs[name][0]
        what = f"{name!r} stands for {len(needs[name])} steps, so has no one outcome"
        raise WhenFault(what, offset, f"name one of them: steps[{needs[name][0]!r}]")
    every = [each for instances in needs.values() for each in instances]
    if name in every:
        return name
    if name in steps:
        raise WhenFault(f"{name!r} is none of the steps that this one needs", offset, f"add {name!r} to its needs")
    raise WhenFault(f"there is no step {name!r}", offset, suggestion(name, [*needs, *every], "needs"))


def _check_path(path: tuple[str, ...], offset: int, matrix: Collection[str], is_last: bool) -> None:
    first, *rest = path
    if first == "failed" and not rest:
        if is_last:
            return
        raise WhenFault("only a step of finally: may ask whether one failed before", offset)
    if first == "steps":
        if len(rest) < 2:
            raise WhenFault(f"of a step, say what: steps.{'.'.join(rest) or 'NAME'}.status, or a result", offset)
        return
    known = {"matrix": matrix, "host": _HOST}
    if first not in known:
        names = ["matrix", "host", "steps", *(["failed"] if is_last else [])]
        raise WhenFault(f"there is no {first!r} to ask for", offset, suggestion(first, names, "names"))
    if len(rest) != 1 or rest[0] not in known[first]:
        what = f"{first} has no {'.'.join(rest)!r}" if rest else f"say which of {first}"
        raise WhenFault(what, offset, suggestion(".".join(rest), known[first], "names"))


class _Renaming(ast.NodeTransformer):
    """`steps.NAME` and `steps['NAME']` become those of the step that is meant."""

    def __init__(self, renamed: Mapping[str, str]) -> None:
        self._renamed = renamed

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._of_steps(node) or ast.Attribute(self.visit(node.value), node.attr, node.ctx)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return self._of_steps(node) or ast.Subscript(self.visit(node.value), node.slice, node.ctx)

    def _of_steps(self, node: ast.Attribute | ast.Subscript) -> ast.expr | None:
        path = _path(node)
        if len(path) != 2 or path[0] != "steps":
            return None
        return ast.Subscript(node.value, ast.Constant(self._renamed[path[1]]), node.ctx)


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
    return _fact(_path(node), facts)


def _compared(op: ast.cmpop, one: Any, other: Any) -> Any:
    try:
        return _COMPARED[type(op)](one, other)
    except TypeError:
        raise WhenFault(f"{one!r} and {other!r} can not be compared so") from None


def _fact(path: tuple[str, ...], facts: Mapping[str, Any]) -> Any:
    if len(path) == 1 and path[0] in _WORDS:
        return _WORDS[path[0]]
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
