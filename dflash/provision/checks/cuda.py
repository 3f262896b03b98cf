"""Layer 6, CUDA itself, at the end of the chain: NVML's count, then cuInit, then a context and memory on each GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dflash.finding import Finding
from dflash.provision.checks.faults import fault
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.cuda import CUDA, Cuda
from dflash.provision.facts.inside import OPENS, gpus_of

HOST: tuple[Fact[Any], ...] = ()
INSIDE: tuple[Fact[Any], ...] = (CUDA, OPENS)

_SAME = "give the container the libraries of the host's kernel module, or load that anew"
_UVM = "on the host: nvidia-modprobe -c0 -u; then look that /dev/nvidia-uvm is in the container, too, and may be opened"
NVML = {
    3: ("not supported", "look at the GPU's model"),
    4: (
        "no permission",
        "let the user open /dev/nvidia* (mode, group, the container's device cgroup)",
    ),
    9: (
        "the driver is not loaded, or its nodes are not there",
        "bring /dev/nvidia* into the container",
    ),
    12: ("a library is not found", "run ldconfig there"),
    15: ("a GPU is lost", "reboot the host"),
    17: ("the operating system blocks it", "look at the container's device cgroup and its seccomp profile"),
    18: ("the library is of another version than the kernel module", _SAME),
    999: ("unknown error", "read the host's dmesg for NVRM; after a daemon-reload, start the container again"),
}
INIT = {
    2: ("out of memory", "stop what uses the GPUs"),
    3: ("not initialized", _UVM),
    34: ("the library is the stub of the toolkit", "take …/stubs out of LD_LIBRARY_PATH"),
    35: ("the driver is older than the library", _SAME),
    46: ("the GPU is busy, or not available", "stop who holds it, or set its compute mode: nvidia-smi -c DEFAULT"),
    100: ("no device", "look at CUDA_VISIBLE_DEVICES, at MIG (nvidia-smi -mig 0), and at the nodes in the container"),
    101: ("invalid device", "look at CUDA_VISIBLE_DEVICES"),
    304: ("the operating system refuses a call", _UVM),
    800: ("not permitted", "let the user open /dev/nvidia* (mode, group, the container's device cgroup)"),
    801: ("not supported", "look at the GPU's model and its MIG mode"),
    802: (
        "the NVSwitches are not set up",
        "systemctl start nvidia-fabricmanager, of the driver's version",
    ),
    803: ("the libraries are of another version than the kernel module", _SAME),
    804: ("a compatibility library that this GPU does not take", "take …/compat out of LD_LIBRARY_PATH"),
    999: ("unknown error", _UVM),
}


def judge(host: Facts, inside: Facts, want: Wanted) -> Iterator[Finding]:
    """The first step that fails; the later ones could only fail for it. Where no GPU is wanted and none is seen, CUDA
    need not work, whatever the host has."""
    read = inside[CUDA]
    asked = want.gpus > 0 or bool(gpus_of(inside[OPENS]))
    missing = dict(read.missing)
    if read.hung:
        yield fault("cuda-hangs", "CUDA", "does not come to an end", "read the host's dmesg; most often a reboot helps")
    elif not asked and (missing or read.nvml or read.init):
        return
    elif read.error:
        cure = "install python3, not python3-minimal" if "ctypes" in read.error else "look at the host's dmesg for NVRM"
        yield fault("cuda-probe", "CUDA", read.error, cure, "block" if asked else "ok")
    elif "libcuda.so.1" in missing or "libnvidia-ml.so.1" in missing:
        name = min(missing)
        cure = "bring the driver's libraries of the host's version there, then ldconfig"
        yield fault("no-libcuda", "CUDA", f"{name}: {missing[name]}", cure)
    elif read.nvml:
        what, cure = NVML.get(read.nvml, ("no known status", "read the host's dmesg for NVRM"))
        yield fault("nvml", "NVML", f"status {read.nvml}: {what}", cure)
    elif read.init:
        what, cure = INIT.get(read.init, ("no known status", "read the host's dmesg for NVRM"))
        text = f"cuInit gives {read.init}: {what}; nvidia-smi works all the same, which asks NVML alone"
        yield fault("cuda-init", "CUDA", text, cure)
    else:
        yield from devices(read, want)


def devices(read: Cuda, want: Wanted) -> Iterator[Finding]:
    """Each GPU that CUDA sees."""
    failed = [(index, code) for index, code in enumerate(read.devices) if code]
    for index, code in failed:
        what, cure = INIT.get(code, ("no known status", "read the host's dmesg for NVRM"))
        yield fault("cuda-device", f"GPU {index}", f"a context and 1 MiB: status {code}, {what}", cure)
    if read.count < max(want.gpus, read.nvml_count):
        text = f"sees {read.count} GPUs of {max(want.gpus, read.nvml_count)}"
        cure = "look at CUDA_VISIBLE_DEVICES, at MIG, and which /dev/nvidia* the container has"
        yield fault("cuda-device", "CUDA", text, cure)
    elif not failed:
        yield Finding("ok", "CUDA", f"memory on each of {read.count} GPUs")
