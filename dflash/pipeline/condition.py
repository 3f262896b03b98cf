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
import itertools
import keyword
import re
from collections.abc import Collection, Mapping, Sequence

from dflash.pipeline.policy import LEFT_OUT
from dflash.validation import suggestion

HOST = ("name", "gpus")
"""What a condition sees of a host."""

WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
"""Names that are values."""

_STATUSES = ("ok", "failed", "interrupted", LEFT_OUT, "blocked", "pending")
_OPERATORS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
_LONGEST = 1000
_CURE = "write comparisons of names and values, joined by and, or, not"


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
    tree = parsed(text)
    renamed: dict[str, str] = {}
    for node, path in paths(tree):
        offset = _offset(text, node)
        if path[0] == "steps" and len(path) > 1 and path[1] is not None:
            renamed[path[1]] = _step_meant(path[1], offset, needs, steps)
        _check_path(path, offset, matrix, is_last)
    _check_statuses(tree, text)
    if all(name == meant for name, meant in renamed.items()):
        return text
    return ast.unparse(_Renaming(renamed).visit(ast.parse(_whole(text), mode="eval")))


def _whole(text: str) -> str:
    """The text on one line, without changing where a character is."""
    return text.replace("\n", " ").replace("\t", " ")


@functools.lru_cache(maxsize=4096)
def parsed(text: str) -> ast.expr:
    """The condition, with nothing in it that the language does not have. Raises WhenFault."""
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
        raise WhenFault(f"this is no condition: {failure.msg}", min(at, len(text) - 1), _syntax_cure(text)) from None
    except (ValueError, RecursionError, MemoryError):
        raise WhenFault("this is no condition", cure=_CURE) from None
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
            if not all(isinstance(each, _OPERATORS) for each in node.ops):
                raise WhenFault("a condition has no 'is'", _offset(text, node), "write == or !=")
        case ast.Constant(value=str() | int() | float() | None):
            pass
        case ast.Name() | ast.Attribute() | ast.Subscript() if parts(node):
            pass
        case _:
            raise WhenFault(f"a condition has no {_kind(node)}", _offset(text, node), _syntax_cure(text))
    for each in inner:
        _check_node(each, text)


def _syntax_cure(text: str) -> str:
    for name in re.findall(r"\bsteps\.([a-z0-9][a-z0-9_-]*)", text):
        if not name.isidentifier() or keyword.iskeyword(name):
            return f"write steps[{name!r}] for steps.{name}"
    if re.search(r"[^=!<>]=[^=]", text):
        return "write == for equal"
    return "write and, or, not for &&, ||, !" if re.search(r"&&|\|\||!(?!=)", text) else _CURE


def _check_statuses(tree: ast.expr, text: str) -> None:
    """Raise WhenFault where a step's status is compared with what no status is: it would never hold."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for one, other in [*itertools.pairwise(sides), *itertools.pairwise(sides[::-1])]:
                if (path := parts(one))[:1] == ("steps",) and path[2:] == ("status",):
                    _check_status(other, text)


def _check_status(node: ast.expr, text: str) -> None:
    for each in node.elts if isinstance(node, ast.List | ast.Tuple) else [node]:
        if isinstance(each, ast.Constant) and each.value not in _STATUSES:
            cure = suggestion(str(each.value), _STATUSES, "statuses")
            raise WhenFault(f"no step ends with the status {each.value!r}", _offset(text, each), cure)


def _kind(node: ast.expr) -> str:
    names = {"BinOp": "arithmetic", "JoinedStr": "f-strings", "IfExp": "if", "Call": "calls", "Dict": "maps"}
    return names.get(type(node).__name__, f"{type(node).__name__.lower()} like this")


def _offset(text: str, node: ast.expr) -> int:
    stripped = _whole(text).strip()
    return len(text) - len(text.lstrip()) + len(stripped.encode()[: node.col_offset].decode())


def parts(node: ast.expr) -> tuple[str, ...]:
    """`a.b['c']` as its parts; empty for anything else."""
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=base, attr=name) | ast.Subscript(value=base, slice=ast.Constant(value=str() as name)):
            before = parts(base)
            return (*before, name) if before else ()
    return ()


def paths(node: ast.expr) -> list[tuple[ast.expr, tuple[str, ...]]]:
    """Every name that a checked condition reads, with its parts."""
    path = parts(node)
    if path:
        return [] if len(path) == 1 and path[0] in WORDS else [(node, path)]
    return [found for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr) for found in paths(each)]


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
    known = {"matrix": matrix, "host": HOST}
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
        path = parts(node)
        if len(path) != 2 or path[0] != "steps":
            return None
        return ast.Subscript(node.value, ast.Constant(self._renamed[path[1]]), node.ctx)
