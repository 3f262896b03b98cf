"""The compile gate: threads of one process may call compiled functions, and none compiles while another calls.

torch.compile is not thread-safe. While one thread traces, a process-wide flag is up, and any other thread that
*calls* a compiled function, even a warm one, dies with "Detected that you are using FX to symbolically trace a
dynamo-optimized function". A lock around each thread's own first call does not help: its second call comes while
the next thread traces. So the gate has two phases:

    warming   gated functions may be called only inside `turn()`, which one thread holds at a time;
              a turn must include the backward pass, since its graph is compiled by the first `backward()`
    sealed    after `seal()` nothing compiles any more: calls are free, and whatever would need a new graph
              raises `CompilationError` with the graph's name and the shapes that asked for it

    gate = CompileGate()
    layer = gate.compile(run_layer, name="draft_layer")
    ...                                   # in each thread, then a barrier:
    with gate.turn():
        layer(x).sum().backward()
    ...                                   # once, by one thread, after all have had their turn:
    with gate.sealed():
        ...                               # all threads train

Start threads with the caller's context (`contextvars.copy_context().run`): from torch 2.12 compile settings are
context-local.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo.config
from torch import Tensor
from torch.fx import _symbolic_trace

from dflash.errors import CompilationError


def tracing_flag_is_up() -> bool:
    """Whether torch believes that a symbolic trace is running in this process (this thread, from torch 2.14)."""
    return bool(_symbolic_trace.is_fx_symbolic_tracing())


class CompileGate:
    """Keeps compiling and calling apart; see the module's text for the two phases."""

    def __init__(self, *, enabled: bool = True, graphs: int = 64) -> None:
        """A gate for at most `graphs` graphs of one function: each device and each bucket needs one of its own, and
        torch's default of 8 is soon used up. `enabled=False` compiles nothing: gated functions run eagerly, under
        the same rules.
        """
        self.enabled = enabled
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, graphs)
        self._turn = threading.RLock()
        self._holder: int | None = None
        self._sealed = False

    def compile(self, function: Callable[..., Any], *, name: str) -> Callable[..., Any]:
        """`function`, compiled for static shapes and callable only as the gate's phase allows."""
        compiled = torch.compile(function, fullgraph=True, dynamic=False) if self.enabled else function

        def gated(*arguments: Any) -> Any:
            if not self._sealed and self._holder != threading.get_ident():
                raise CompilationError(
                    f"compiled function '{name}' was called before the gate was sealed, outside a turn",
                    cure="call it inside `with gate.turn():` while warming",
                )
            try:
                return compiled(*arguments)
            except RuntimeError as failure:
                if self._sealed and "fail_on_recompile" in str(failure):
                    raise _new_graph(name, arguments, str(failure)) from failure
                raise

        return gated

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the only right to call gated functions; waits for whoever holds it.

        Raises:
            CompilationError: the gate is sealed already, or torch's tracing flag was left up by this turn.
        """
        with self._turn:
            if self._sealed:
                raise CompilationError("a turn was asked for after the gate was sealed")
            before, self._holder = self._holder, threading.get_ident()
            try:
                yield
            finally:
                self._holder = before
            if tracing_flag_is_up():
                raise CompilationError(
                    "torch's tracing flag stayed up after a turn: compiled functions would run eagerly",
                    cure="start the training again in a fresh process",
                )

    def seal(self) -> None:
        """Close the set of graphs for the whole process: from here on a recompilation is an error."""
        with self._turn:
            if self.enabled:
                torch.compiler.set_stance("fail_on_recompile")
            self._sealed = True

    def unseal(self) -> None:
        """Allow turns, and compilation, again."""
        with self._turn:
            if self.enabled:
                torch.compiler.set_stance("default")
            self._sealed = False

    @contextmanager
    def sealed(self) -> Iterator[None]:
        """`seal()`, and `unseal()` at the end."""
        self.seal()
        try:
            yield
        finally:
            self.unseal()


def _new_graph(name: str, arguments: tuple[Any, ...], reason: str) -> CompilationError:
    guard = reason.partition("guard failure(s):")[2].strip().splitlines()
    because = f" (failed guard: {guard[0].strip(' -')})" if guard else ""
    return CompilationError(
        f"'{name}' would need a new graph for {describe(arguments)}{because}, after the set was closed",
        cure="give the training only the shapes, dtypes and modes that it was pre-warmed with",
    )


def describe(arguments: tuple[Any, ...]) -> str:
    """The tensors among `arguments`, nested tuples included, in one line: shape, dtype, device, grad."""
    parts: list[str] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            grad = ", grad" if argument.requires_grad else ""
            parts.append(f"{tuple(argument.shape)} {argument.dtype} on {argument.device}{grad}".replace("torch.", ""))
        elif isinstance(argument, tuple):
            parts.append(f"({describe(argument)})")
    return "; ".join(parts)
