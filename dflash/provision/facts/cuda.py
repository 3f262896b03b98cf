"""Whether CUDA works: not what is installed, but what happens when a process asks for a GPU as training does."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dflash.provision.fact import Fact, Output

# NVML's count, then cuInit, then for each device a context and a small allocation: each can fail where the one before
# it worked (nvidia-smi asks NVML alone, which needs no /dev/nvidia-uvm).
_PROBE = """\
import sys
try:
    import ctypes
except ImportError:
    sys.exit("python3 has no ctypes")
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p

def load(name):
    try:
        return ctypes.CDLL(name)
    except OSError as failure:
        print("missing", name, failure, flush=True)

nvml = load("libnvidia-ml.so.1")
if nvml:
    status, count = nvml.nvmlInit_v2(), c_uint()
    if status == 0:
        status = nvml.nvmlDeviceGetCount_v2(byref(count))
        nvml.nvmlShutdown()
    print("nvml", status, count.value, flush=True)
cuda = load("libcuda.so.1")
if not cuda:
    sys.exit()
status, count = cuda.cuInit(0), c_int()
print("init", status, flush=True)
if status:
    sys.exit()
cuda.cuDeviceGetCount(byref(count))
print("count", count.value, flush=True)
cuda.cuMemAlloc_v2.argtypes = [c_void_p, c_size_t]
cuda.cuMemFree_v2.argtypes = [c_void_p]
for index in range(count.value):
    device, context, memory = c_int(), c_void_p(), c_void_p()
    status = cuda.cuDeviceGet(byref(device), index)
    status = status or cuda.cuDevicePrimaryCtxRetain(byref(context), device)
    status = status or cuda.cuCtxSetCurrent(context)
    status = status or cuda.cuMemAlloc_v2(byref(memory), 1 << 20)
    if not status:
        cuda.cuMemFree_v2(memory)
        cuda.cuDevicePrimaryCtxRelease_v2(device)
    print("device", index, status, flush=True)
"""


@dataclass(frozen=True)
class Cuda:
    """How far a process came. `nvml`, `init` and the values of `devices` are status codes, 0 for success; None where it
    did not come so far. `missing` are libraries that could not be loaded, each with the loader's words."""

    nvml: int | None = None
    nvml_count: int = 0
    init: int | None = None
    count: int = 0
    devices: tuple[int, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    hung: bool = False
    error: str = ""


def _cuda(output: Output) -> Cuda:
    def number(pattern: str) -> int | None:
        found = re.search(pattern, output.stdout, re.MULTILINE)
        return int(found[1]) if found else None

    said = output.stderr.strip().splitlines()
    ended = f"the process died of signal {output.status - 128}" if output.status > 128 else ""
    return Cuda(
        nvml=number(r"^nvml (\d+)"),
        nvml_count=number(r"^nvml \d+ (\d+)") or 0,
        init=number(r"^init (\d+)"),
        count=number(r"^count (\d+)") or 0,
        devices=tuple(int(code) for code in re.findall(r"^device \d+ (\d+)", output.stdout, re.MULTILINE)),
        missing=tuple(re.findall(r"^missing (\S+) (.+)$", output.stdout, re.MULTILINE)),
        hung=output.hung,
        error="" if output.ok or output.hung else ended or (said[-1] if said else f"it ended with {output.status}"),
    )


CUDA = Fact("cuda", ("python3", "-ISc", _PROBE), _cuda)
