"""Triton's key of a kernel for an H200, which needs no GPU, as a process asks for it that compiles, or finds, first.

    python tests/race/keys.py compiling|finding|gate

`compiling`: inductor asks Triton for its backend while it writes the first kernel, and names its own ptxas after that.
`finding`: everything is in the cache, and naming ptxas is the first that torch does. `gate`: in the turn of a gate.

Prints {"backend": what is in the key of the version of ptxas, "kernels": those made by asking twice for one kernel}.
"""

from __future__ import annotations

import json
import sys

import triton
import triton.language as tl
from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend

from dflash.compilation.gate import CompileGate
from dflash.compilation.hits import cache_counts

H200 = GPUTarget("cuda", 90, 32)


@triton.jit
def increment(place, count):  # type: ignore[no-untyped-def] # Triton looks annotations up
    at = tl.program_id(0)
    tl.store(place + at, tl.load(place + at, mask=at < count) + 1, mask=at < count)


def main() -> None:
    mode = sys.argv[1]
    if mode == "finding":
        _set_triton_ptxas_path()
    if mode == "gate":
        with CompileGate().turn():
            backend = make_backend(H200).hash()
    else:
        backend = make_backend(H200).hash()
        _set_triton_ptxas_path()
    for _ in range(2):
        triton.compile(ASTSource(increment, {"place": "*fp32", "count": "i32"}), target=H200)
    print(json.dumps({"backend": backend, "kernels": cache_counts().kernels}))


if __name__ == "__main__":
    main()
