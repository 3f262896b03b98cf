"""The compile gate: threads of one process may call compiled functions, and none compiles while another calls.

torch.compile is not thread-safe. While one thread traces, a process-wide flag is up, and any other thread that
*calls* a compiled function, even a warm one, dies with "Detected that you are using FX to symbolically trace a
dynamo-optimized function". A lock around each thread's own first call does not help: its second call comes while
the next thread traces. So the gate has two phases:

    warming   gated functions may be called only inside `turn()`, which one thread holds at a time
    sealed    after `seal()` nothing compiles any more: calls are free, and whatever would need a new graph
              raises `CompilationError` with the graph's name, the guard that failed and the shapes that asked for it

    gate = CompileGate()
    layer = gate.compile(run_layer, name="draft_layer")
    ...                                   # in each thread, then a barrier:
    with gate.turn():
        layer(x).sum().backward()
    ...                                   # once, by one thread, after all have had their turn:
    with gate.sealed():
        ...                               # all threads train

docs/compile-gate.md has the whole of it: what it closes, what it costs, and how to use it in a trainer of one's own.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo.config
import torch._functorch.config
from torch import Tensor
from torch._dynamo import eval_frame
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from dflash.compilation.hits import cache_counts
from dflash.compilation.numbering import kernels_numbered_anew
from dflash.compilation.variants import Variants
from dflash.errors import CompilationError

_TURN = threading.RLock()  # of the process, not of a gate: so is what torch.compile shares
_FRESH = "start again in a fresh process"
_MARK = "dflash.compilation.gate"
"""Where a thread keeps the turn that it is in. Autograd gives what a thread keeps so to the threads that run its
backward pass: a forward that a checkpoint does again there is the turn's own."""
_HAS_LIMIT = "recompile_limit" in inspect.signature(torch.compile).parameters  # from torch 2.12


@dataclass(frozen=True)
class Graph:
    """A graph that a turn made: the gated function's name, its inputs (see `describe`), seconds of the call that made
    it, its backward included, and whether it was compiled, as what was not found in the cache is."""

    name: str
    inputs: str
    seconds: float
    compiled: bool


def tracing_flag_is_up() -> bool:
    """Whether torch believes that a symbolic trace is running in this process (this thread, from torch 2.14)."""
    return bool(is_fx_symbolic_tracing())


class CompileGate:
    """Keeps compiling and calling apart; see the module's text for the two phases. `graphs` lists what was made."""

    def __init__(
        self, *, enabled: bool = True, limit: int = 64, on_graph: Callable[[Graph], object] = lambda graph: None
    ) -> None:
        """A gate for at most `limit` graphs of one function: each device and each bucket needs one of its own, and
        torch's default of 8 is soon used up. `on_graph` is told of each graph, in the thread that made it.
        `enabled=False` compiles nothing: gated functions run eagerly, under the same rules.
        """
        self.enabled = enabled
        self.graphs: list[Graph] = []
        self._limit, self._on_graph = limit, on_graph
        self._turn: object = None
        self._sealed = False
        self._stance = "default"  # what it was before the seal
        self._closed: object = None  # torch's stance while sealed
        self._names: set[str] = set()
        self._called: dict[str, Variants] = {}  # the compiled functions that were called in a turn

    def compile(self, function: Callable[..., Any], *, name: str, **options: Any) -> Callable[..., Any]:
        """`function`, or a module, compiled and callable only as the gate's phase allows. `options` are
        torch.compile's; static shapes and no graph breaks are the default: what breaks has pieces that run eagerly.
        """
        if not self.enabled:
            return self.guard(function, name=name)
        if name in self._names:
            raise CompilationError(f"two functions of one gate are named '{name}'", cure="give each a name of its own")
        self._names.add(name)
        limit = {"recompile_limit": self._limit} if _HAS_LIMIT else {}
        variants = Variants(function, {"fullgraph": True, "dynamic": False, **limit, **options})

        def gated(*arguments: Any, **named: Any) -> Any:
            if not self._sealed:
                self._allow(name)
                return self._warm(name, variants, arguments, named)
            if eval_frame._stance is not self._closed:
                raise CompilationError(
                    f"'{name}' was called after somebody changed the stance of torch.compile: it could run eagerly",
                    cure="leave torch.compiler.set_stance alone while the gate is sealed",
                )
            if is_fx_symbolic_tracing():
                raise CompilationError(
                    f"'{name}' was called while something is traced in this process: it could run eagerly",
                    cure="export and trace before the gate is sealed, or in another process",
                )
            try:
                return (variants.only or variants.choose(arguments, named))(*arguments, **named)
            except RuntimeError as failure:
                if "fail_on_recompile" in str(failure):
                    raise _new_graph(name, arguments, named, str(failure)) from failure
                raise

        return gated

    def guard(self, function: Callable[..., Any], *, name: str) -> Callable[..., Any]:
        """`function` as it is, callable only as the gate's phase allows: for what must not run while another thread
        compiles, such as building a block mask."""

        def gated(*arguments: Any, **named: Any) -> Any:
            if not self._sealed:
                self._allow(name)
            return function(*arguments, **named)

        return gated

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the only right to call gated functions; waits for whoever holds it, in any gate of the process.

        Raises:
            CompilationError: a gate is sealed already, or torch's tracing flag was left up, or its check is off.
        """
        with _TURN:
            if self._sealed or (self.enabled and _stance() == "fail_on_recompile"):
                raise CompilationError("a turn was asked for after the gate was sealed")
            before, self._turn = self._turn, self._turn or object()
            _mark(self._turn)
            try:
                with self._settings():
                    yield
            finally:
                self._turn = before
                _mark(before or _OUTSIDE)
            self._refuse_a_stuck_flag()

    def seal(self) -> None:
        """Close the set of graphs for the whole process: from here on a recompilation is an error.

        Raises:
            CompilationError: a function that was called in a turn was never compiled: it would run eagerly, unnoticed;
                or another gate of the process is sealed.
        """
        with _TURN:
            if self.enabled and not self._sealed:
                if _stance() == "fail_on_recompile":
                    raise CompilationError("another gate is sealed: the seal is the process's", cure="use one gate")
                self._refuse_a_stuck_flag()
                made = {graph.name for graph in self.graphs}
                for name, variants in self._called.items():
                    if name not in made:
                        raise CompilationError(
                            f"'{name}' was called and never compiled: it would run eagerly",
                            cure="look for TORCH_COMPILE_DISABLE, TORCHDYNAMO_DISABLE or a stance that is set",
                        )
                    if any(len(eval_frame._debug_get_cache_entry_list(code)) > 1 for code in variants.codes()):
                        raise CompilationError(
                            f"'{name}' has several graphs for arguments that look alike: threads could miss one",
                            cure="give tensors that differ as arguments of their own, not inside of others",
                        )
                    variants.close()
                self._stance = _stance()
                torch.compiler.set_stance("fail_on_recompile")
                self._closed = eval_frame._stance
            self._sealed = True

    def unseal(self) -> None:
        """Allow turns, and compilation, again."""
        with _TURN:
            if self.enabled and self._sealed:
                torch.compiler.set_stance(self._stance)
            self._sealed = False

    @contextmanager
    def sealed(self) -> Iterator[None]:
        """`seal()`, and `unseal()` at the end."""
        self.seal()
        try:
            yield
        finally:
            self.unseal()

    def _allow(self, name: str) -> None:
        if (
            self._turn is None
            or not torch._C._is_key_in_tls(_MARK)
            or torch._C._get_obj_in_tls(_MARK) is not self._turn
        ):
            raise CompilationError(
                f"'{name}' was called before the gate was sealed, outside a turn",
                cure="call it inside `with gate.turn():` while warming",
            )

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """What compiling in a turn needs of torch, in the thread that holds it: from 2.12 settings are a context's.

        The backward graph is compiled with its forward. Left to the first `backward()`, as torch does, it could be
        compiled after the seal, which the stance does not see; and on a GPU two threads can wait for one another
        for good, one holding the compile lock, the other autograd's thread of the device.

        Which ptxas is used is settled before the first kernel: Triton asks for its version once and has it in every
        key, and torch, left to itself, names its own only after that, in a process that compiles, and before it in one
        that finds everything, which then looks for other keys.
        """
        if not self.enabled:
            yield
            return
        dynamo, functorch = torch._dynamo.config, torch._functorch.config
        if not dynamo.error_on_nested_fx_trace:
            raise CompilationError(
                "error_on_nested_fx_trace is off: compiled functions may run eagerly, for good and unnoticed",
                cure="leave torch._dynamo.config.error_on_nested_fx_trace on; the gate makes it needless",
            )
        limit = max(dynamo.recompile_limit, self._limit)
        _set_triton_ptxas_path()
        with (
            dynamo.patch(
                recompile_limit=limit,
                accumulated_recompile_limit=max(dynamo.accumulated_recompile_limit, limit),
                fail_on_recompile_limit_hit=not dynamo.suppress_errors,
            ),
            functorch.patch(force_non_lazy_backward_lowering=True),
        ):
            yield

    def _warm(self, name: str, variants: Variants, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call in a turn, and note the graph if that made one."""
        self._called[name] = variants
        compiled = variants.make(arguments, named)
        if len(variants) > self._limit:
            raise self._too_many(name, describe(arguments, named))
        inputs, before, begun = describe(arguments, named), cache_counts(), time.monotonic()
        try:
            with kernels_numbered_anew():
                result = compiled(*arguments, **named)
        except FailOnRecompileLimitHit as failure:
            raise self._too_many(name, inputs) from failure
        after = cache_counts()
        if after.graphs > before.graphs:
            found = after.autograd_hits > before.autograd_hits and after.compiled == before.compiled
            graph = Graph(name, inputs, time.monotonic() - begun, compiled=not found)
            self.graphs.append(graph)
            self._on_graph(graph)
        return result

    def _too_many(self, name: str, inputs: str) -> CompilationError:
        return CompilationError(
            f"'{name}' needs more than {self._limit} graphs; the last was for {inputs}",
            cure="give it fewer shapes, or the gate a higher limit",
        )

    def _refuse_a_stuck_flag(self) -> None:
        if tracing_flag_is_up():
            raise CompilationError(
                "torch's tracing flag stayed up after a turn: compiled functions would run eagerly", cure=_FRESH
            )


def _mark(turn: object) -> None:
    """Keep `turn` in this thread. Torch 2.11 takes the reference that it gives up later without counting it."""
    torch._C._stash_obj_in_tls(_MARK, turn)
    if _TAKES_UNCOUNTED:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(turn))


def _takes_uncounted() -> bool:
    probe = object()
    before = sys.getrefcount(probe)
    torch._C._stash_obj_in_tls(_MARK, probe)
    uncounted = sys.getrefcount(probe) == before
    if uncounted:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(probe))
    return uncounted


_OUTSIDE = object()
_TAKES_UNCOUNTED = _takes_uncounted()


def _stance() -> str:
    return eval_frame._stance.stance


def _new_graph(name: str, arguments: tuple[Any, ...], named: dict[str, Any], reason: str) -> CompilationError:
    guard = reason.partition("guard failure(s):")[2].strip().splitlines()
    because = f" (failed guard: {guard[0].strip(' -')[:200]})" if guard else " (it has none yet)"
    return CompilationError(
        f"'{name}' would need a new graph for {describe(arguments, named)}{because}, after the set was closed",
        cure="give the training only the shapes, dtypes and modes that it was pre-warmed with",
    )


def describe(arguments: tuple[Any, ...], named: dict[str, Any] | None = None) -> str:
    """The tensors among `arguments`, nested tuples and lists included, in one line: shape, dtype, device, grad."""
    parts: list[str] = []
    for argument in (*arguments, *(named or {}).values()):
        if isinstance(argument, Tensor):
            grad = ", grad" if argument.requires_grad else ""
            parts.append(f"{tuple(argument.shape)} {argument.dtype} on {argument.device}{grad}".replace("torch.", ""))
        elif isinstance(argument, tuple | list) and (inside := describe(tuple(argument))):
            parts.append(f"({inside})")
    return "; ".join(parts)
