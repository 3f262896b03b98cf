"""Everything that decides whether a compile cache is valid here: the vault's key, ingredient by ingredient.

Inductor's own key has the code of the graph, its inputs with their devices, its configuration, torch's and Triton's
source and the GPU's name; not in it, and in ours, are the interpreter, the C library that launchers are linked with,
and for CPU kernels the C++ compiler and the processor. Driver, host and path do not decide: they are recorded beside.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

OVERRIDES = re.compile(r"(?:TORCH|TRITON|PYTORCH|INDUCTOR|AOT|CUDA_|NVIDIA_TF32|CXX$|OMP_)\w*")
"""Variables that change what is compiled, or how."""
OTHERS = re.compile(
    r"TORCHINDUCTOR_CACHE_DIR|TRITON_CACHE_DIR|TRITON_HOME|TORCHINDUCTOR_COMPILE_THREADS|OMP_NUM_THREADS"
    r"|TORCH_(?:LOGS|TRACE|HOME|EXTENSIONS|SHOW_CPP|CPP_LOG|DISTRIBUTED|NCCL|FR_|SYMM_MEM)\w*|TORCHELASTIC_\w*"
    r"|PYTORCH(?:_CUDA)?_ALLOC_CONF|CUDA_(?:HOME|PATH|VISIBLE_DEVICES|DEVICE_ORDER|LAUNCH_BLOCKING|CACHE|MODULE)\w*"
)
"""Of those, what says only where, how fast, or what to log. Which GPUs are seen is among the devices."""


def ingredients(
    graphs: Mapping[str, Any],
    sources: Sequence[Path],
    devices: Sequence[str],
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The key. `graphs` is all of the configuration that shapes a graph, `sources` the files that define them,
    `devices` the ordered map from worker to device, such as `("cuda:0 NVIDIA H200 9.0", ...)` or `("cpu", ...)`."""
    here = machine(environ)
    if "cpu" not in devices:
        here = {name: value for name, value in here.items() if name not in ("processor", "compiler")}
    return {
        **{name: value for name, value in here.items() if name != "gpus"},
        "devices": ", ".join(devices),
        "graphs": json.dumps(graphs, sort_keys=True),
        "sources": digest(sources),
    }


def machine(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of the ingredients what is this machine's, its environment's and its variables', read without importing torch."""
    return {
        "torch": _distribution("torch"),
        "triton": _distribution("triton"),
        "transformers": _distribution("transformers"),
        "cuda": _cuda(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "gpus": _gpus(Path("/proc/driver/nvidia/gpus")),
        "processor": processor(Path("/proc/cpuinfo")),
        "compiler": compiler(environ.get("CXX", "g++")),
        "overrides": json.dumps(overrides(environ), sort_keys=True),
    }


def recorded(cache: Path) -> dict[str, str]:
    """What is good to know of a snapshot, and decides nothing."""
    return {"host": socket.gethostname(), "path": str(cache), "driver": _driver()}


def overrides(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change what is compiled. Torch itself points Triton to the ptxas that it came with."""
    torch = _torch_folder()
    own = ("TRITON_PTXAS_PATH", str(torch / "bin" / "ptxas")) if torch else None
    return {
        name: value
        for name, value in environ.items()
        if OVERRIDES.fullmatch(name) and not OTHERS.fullmatch(name) and (name, value) != own
    }


def digest(sources: Sequence[Path]) -> str:
    """A hash of files, by name and content, whatever folder they lie in."""
    state = hashlib.sha256()
    for path in sorted(sources, key=lambda each: each.name):
        state.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()[:16]


def processor(cpuinfo: Path) -> str:
    """The instruction sets that CPU kernels are compiled for, as a hash: two models with the same are the same."""
    try:
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        found = None
    names = sorted(found.group(1).split()) if found else []
    return hashlib.sha256(" ".join(names).encode()).hexdigest()[:16]


def compiler(name: str) -> str:
    """The C++ compiler's first line about itself; empty when it is not there."""
    try:
        done = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.partition("\n")[0]


def _distribution(name: str) -> str:
    """Version and a hash of every file's hash: the RECORD, which env.verify holds against the files."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return "none"
    record = found.read_text("RECORD") or ""
    lines = sorted(line for line in record.splitlines() if ".pyc" not in line and ".dist-info/" not in line)
    return f"{found.version} {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:16]}"


def _cuda() -> str:
    """What torch was built for, from its version.py: importing torch takes seconds."""
    torch = _torch_folder()
    text = (torch / "version.py").read_text() if torch else ""
    cuda = re.search(r"^cuda\b[^=]*= *['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return cuda.group(1) if cuda else "none"


def _torch_folder() -> Path | None:
    found = importlib.util.find_spec("torch")
    return Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "none"
    found = re.search(r"(\d+\.\d+(?:\.\d+)?)", text)
    return found.group(1) if found else "none"


def _gpus(folder: Path) -> str:
    """The models of the GPUs that the driver has, in the order of their bus."""
    found = []
    for information in sorted(folder.glob("*/information")):
        model = re.search(r"^Model:\s*(.*)$", information.read_text(), re.MULTILINE)
        found.append(model.group(1) if model else "unknown")
    return ", ".join(found)
