"""One compiled function for each kind of call, so that no thread has to search for its graph while another does.

torch keeps the graphs of a function in one list and looks through it at each call; the one that fits is moved to the
front, and between two guards another thread may run. So a thread can pass by a graph that another has just moved, and
takes it for missing: an error after the seal, a needless compilation without one. Three threads that call a function of
six graphs in turn lose one within some 1,500 calls each (torch 2.13, three of three runs). With a code object of its
own for each kind of call every list has one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

Arguments = tuple[Any, ...]


class Variants:
    """The compiled copies of one function, by kind of call."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        """`options` are torch.compile's."""
        self._function = function if isinstance(function, FunctionType) else _calling(function)
        self._options = options
        self._made: dict[object, Callable[..., Any]] = {}
        self._codes: list[CodeType] = []
        self.only: Callable[..., Any] | None = None
        """The one copy of a closed set of one: a call then costs nothing more."""

    def make(self, arguments: Arguments, named: Mapping[str, Any]) -> Callable[..., Any]:
        """The copy for such a call, made if there is none yet."""
        kind = kind_of(arguments, named)
        if kind not in self._made:
            self._made[kind] = self._copy()
            self.only = None
        return self._made[kind]

    def close(self) -> None:
        """No copy is made from here on: where there is one only, calls are not looked at."""
        self.only = next(iter(self._made.values())) if len(self._made) == 1 else None

    def choose(self, arguments: Arguments, named: Mapping[str, Any]) -> Callable[..., Any]:
        """The copy for such a call; any copy, whose guards will tell what is wrong, if there is none."""
        found = self._made.get(kind_of(arguments, named))
        return found or (next(reversed(self._made.values())) if self._made else self._copy())

    def __len__(self) -> int:
        return len(self._made)

    def codes(self) -> Iterator[CodeType]:
        """The code objects of all copies, which torch keeps their graphs at."""
        return iter(self._codes)

    def _copy(self) -> Callable[..., Any]:
        function, number = self._function, len(self._codes)
        name = f"{function.__name__}_{number}" if number else function.__name__
        code = function.__code__.replace(co_name=name)
        copy = FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
        copy.__kwdefaults__ = function.__kwdefaults__
        self._codes.append(code)
        compiled: Callable[..., Any] = torch.compile(copy, **self._options)
        return compiled


def _calling(callee: Callable[..., Any]) -> FunctionType:
    """A function, for what has no code of its own: a module, a partial function."""

    def call(*arguments: Any, **named: Any) -> Any:
        return callee(*arguments, **named)

    assert isinstance(call, FunctionType)
    return call


def kind_of(arguments: Arguments, named: Mapping[str, Any]) -> object:
    """What a graph is specialised on, as far as the arguments themselves tell; tensors inside of tuples, lists and
    other objects are not looked at, for speed."""
    kind = [_kind(argument) for argument in arguments]
    if named:
        kind += [(name, _kind(argument)) for name, argument in named.items()]
    kind.append(torch.is_grad_enabled())
    return tuple(kind)


def _kind(argument: Any) -> object:
    if isinstance(argument, Tensor):
        return argument.shape, argument.dtype, argument.device, argument.requires_grad
    if isinstance(argument, bool | int | float | str | None):
        return type(argument), argument
    return type(argument)
