"""One start of a trainer in miniature: threads that step on compiled functions while others still compile.

    PYTHONPATH=. TORCHINDUCTOR_CACHE_DIR=/a/fresh/folder python tests/race/start.py MODE [--mask eager]

Runs with any torch from 2.11 on, and needs nothing else but `dflash.compilation.gate`. Each thread has a sequence
length of its own, so a graph of its own; a step builds a block mask, compiled or not, and calls compiled
flex_attention, forward only, since that has no backward on CPU. Modes, from the usual to the one that works:

    alone             no threads at once, each begins when the last has ended: fills a cache without the gate
    none              each thread goes on stepping as soon as it can
    first-call-lock   the same, with a lock round each thread's own first step
    check-off         the same as none, with torch's own check switched off (error_on_nested_fx_trace=False)
    gate              first steps in turn, a barrier that seals the gate, then steps with recompilation forbidden

Prints one line of JSON. It does not watch for hangs: whoever starts it has a timeout.
"""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import json
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo.config
import torch._inductor.config
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor import cpu_vec_isa
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from dflash.compilation.gate import CompileGate, tracing_flag_is_up

MODES = ("alone", "none", "first-call-lock", "check-off", "gate")
WINDOW, BLOCK, HEADS, WIDTH = 96, 128, 2, 32
FX = "using FX to symbolically trace a dynamo-optimized function"
KINDS = {"fx": FX, "annotation": "KeyError: 'custom'", "fallback": "'Subgraph' object has no attribute 'dtype'"}
"""The known ways to die: a word for each, and what its message holds."""

eager_calls: list[str] = []
"""One entry for each time that Python itself ran a function which should have run compiled."""


def window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (key <= query) & (query - key < WINDOW)


def eager_mask(length: int) -> BlockMask:
    return create_block_mask(window, None, None, length, length, device="cpu", BLOCK_SIZE=BLOCK)


def compiled_mask(length: int) -> BlockMask:
    # Dynamo takes is_dynamo_compiling() for True while it traces, and compiled code has no trace of this branch; only
    # when the plain function is called is it False. is_compiling() will not do: 2.13 raises it in every thread.
    if not torch.compiler.is_dynamo_compiling():
        eager_calls.append("mask")
    return eager_mask(length)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask) -> Tensor:
    if not torch.compiler.is_dynamo_compiling():
        eager_calls.append("attention")
    return flex_attention(query, key, value, block_mask=mask)


class Start:
    """The threads of one start, and what became of them."""

    def __init__(self, mode: str, threads: int, steps: int, compile_mask: bool = True) -> None:
        self.mode, self.steps = mode, steps
        self.lengths = [BLOCK * (3 + 2 * number) for number in range(threads)]
        self.failures: list[BaseException] = []
        self.taken = [0] * threads
        self.flags = [False] * threads
        self.errors = [0.0] * threads
        self.sealed: dict[str, Any] = {}
        self.at_once = 1 if mode == "alone" else threads
        self.ended = threading.Barrier(self.at_once)
        self.lock = threading.Lock()
        self.gate = CompileGate()
        self.everyone = threading.Barrier(threads, action=self.seal)
        gated = mode == "gate"
        self.attend = self.gate.compile(attend, name="attention") if gated else plainly(attend)
        if compile_mask:
            self.mask = self.gate.compile(compiled_mask, name="mask") if gated else plainly(compiled_mask)
        else:
            self.mask = self.gate.guard(eager_mask, name="mask") if gated else eager_mask

    def seal(self) -> None:
        self.gate.seal()
        self.sealed = {"flag_after_prewarm": tracing_flag_is_up(), "graphs_when_sealed": graphs()}

    def run(self) -> None:
        threads = [
            # From torch 2.12 settings belong to a context, and a new thread has an empty one.
            threading.Thread(target=contextvars.copy_context().run, args=(self.work, number), daemon=True)
            for number in range(len(self.lengths))
        ]
        for begun in range(0, len(threads), self.at_once):
            for thread in threads[begun : begun + self.at_once]:
                thread.start()
            for thread in threads[begun : begun + self.at_once]:
                thread.join()

    def work(self, number: int) -> None:
        try:
            length = self.lengths[number]
            generator = torch.Generator().manual_seed(number)
            tensors = [torch.randn(1, HEADS, length, WIDTH, generator=generator) for _ in range(3)]
            with self.first():
                output = self.step(number, tensors)
            if self.mode == "gate":
                self.everyone.wait()
            while not self.failures and (self.taken[number] < self.steps or (0 in self.taken and self.at_once > 1)):
                output = self.step(number, tensors)
            # Not against eager flex_attention, which is made of compiled parts itself.
            index = torch.arange(length)
            visible = window(index, index, index[:, None], index)
            reference = scaled_dot_product_attention(*tensors, attn_mask=visible)
            self.errors[number] = float((output - reference).abs().max())
        except threading.BrokenBarrierError:
            pass  # another thread has failed
        except BaseException as failure:
            self.failures.append(failure)
            self.everyone.abort()
        finally:
            self.ended.wait()  # nobody traces any more; from 2.14 each thread has a flag of its own
            self.flags[number] = tracing_flag_is_up()

    def first(self) -> contextlib.AbstractContextManager[Any]:
        if self.mode == "gate":
            return self.gate.turn()
        return self.lock if self.mode == "first-call-lock" else contextlib.nullcontext()

    def step(self, number: int, tensors: list[Tensor]) -> Tensor:
        output: Tensor = self.attend(*tensors, self.mask(self.lengths[number]))
        self.taken[number] += 1
        return output


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """What the gate does to a function, without the gate."""
    return torch.compile(function, fullgraph=True, dynamic=False)


def graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def kind(failure: BaseException) -> str:
    text = "".join(traceback.format_exception(failure))
    return next((word for word, sign in KINDS.items() if sign in " ".join(text.split())), "other")


@contextlib.contextmanager
def torchs_own_check(on: bool) -> Iterator[None]:
    before = torch._dynamo.config.error_on_nested_fx_trace
    torch._dynamo.config.error_on_nested_fx_trace = on
    try:
        yield
    finally:
        torch._dynamo.config.error_on_nested_fx_trace = before


def spare_the_probing() -> None:
    """Inductor compiles and loads a program for each instruction set that the processor may have, once a cache folder:
    up to a minute, in which nothing is traced. Flex attention needs AVX2 on x86 anyway, so take that."""
    cpu_vec_isa.VecISA.check_build = lambda self, code: True  # type: ignore[method-assign]
    if platform.machine() == "x86_64":
        torch._inductor.config.cpp.simdlen = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--mask", choices=("compiled", "eager"), default="compiled")
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    wanted = parser.parse_args()
    spare_the_probing()
    if torch.version.cuda and not torch.cuda.is_available():
        # A CUDA build without a GPU segfaults in this call as soon as a second thread compiles, and it is of no use
        # there: it sets the guard by which fake tensors meet a GPU.
        torch._C._ensureCUDADeviceGuardSet = lambda: None  # type: ignore[attr-defined]
    begun = time.monotonic()
    with torchs_own_check(wanted.mode != "check-off"):
        start = Start(wanted.mode, wanted.threads, wanted.steps, wanted.mask == "compiled")
        start.run()
    failed = start.failures[0] if start.failures else None
    if failed:
        traceback.print_exception(failed, file=sys.stderr)
    result = {
        "torch": torch.__version__,
        "mode": wanted.mode,
        "mask": wanted.mask,
        "outcome": "failed" if failed else "ok",
        "kind": kind(failed) if failed else "",
        "error": f"{type(failed).__name__}: {str(failed).strip().partition(chr(10))[0]}" if failed else "",
        "eager_calls": len(eager_calls),
        "flag_up": any(start.flags),
        "worst_error": max(start.errors),
        "steps": start.taken,
        "graphs": graphs(),
        "misses": int(counters["inductor"]["fxgraph_cache_miss"]),
        "hits": int(counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]),
        "seconds": round(time.monotonic() - begun, 1),
        **start.sealed,
    }
    print(json.dumps(result), flush=True)
    sys.stderr.flush()
    os._exit(0)  # an ordinary exit waits for compile workers


if __name__ == "__main__":
    main()
