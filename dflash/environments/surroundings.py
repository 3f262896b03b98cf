"""What lies around an environment and can lead a process astray: variables, other libraries, the driver.

Sent to the far end, where it is read: standard library, Python 3.8+.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VARIABLES = ("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "CUDA_HOME", "CUDA_PATH")


@dataclass(frozen=True)
class Surroundings:
    """`libraries` are the shared objects in each folder of LD_LIBRARY_PATH, `modules` what can be imported from each
    entry of PYTHONPATH and of the user's own site-packages, `toolkit` the version of the CUDA toolkit that CUDA_HOME
    leads to, `driver` that of the NVIDIA kernel module."""

    machine: str
    variables: Mapping[str, str]
    libraries: Mapping[str, list[str]]
    modules: Mapping[str, list[str]]
    toolkit: str | None = None
    driver: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def read() -> Surroundings:
    """As they are for a process started here, now."""
    variables = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    home = variables.get("CUDA_HOME") or variables.get("CUDA_PATH")
    return Surroundings(
        machine=platform.machine(),
        variables=variables,
        libraries={
            folder: [name for name in _names(folder) if ".so" in name]
            for folder in _entries(variables, "LD_LIBRARY_PATH")
        },
        modules={
            entry: [name for name in _names(entry) if _importable(entry, name)]
            for entry in [*_entries(variables, "PYTHONPATH"), user_site()]
        },
        toolkit=parse_toolkit(_text(Path(home) / "version.json"), home) if home else None,
        driver=parse_driver(_text(Path("/proc/driver/nvidia/version"))),
    )


def user_site() -> str:
    """The site-packages of this user, whether there is one or not."""
    base = Path(os.environ.get("PYTHONUSERBASE") or Path.home() / ".local")
    return str(base / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages")


def _entries(variables: Mapping[str, str], name: str) -> list[str]:
    return [entry for entry in variables.get(name, "").split(os.pathsep) if entry]


def parse_driver(text: str) -> str | None:
    """`NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  …` -> 580.65.06"""
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text + "\n")
    return found.group(1) if found else None


def parse_toolkit(version_json: str, home: str) -> str | None:
    """The toolkit's version from its version.json, or else from the name of its folder, `/usr/local/cuda-12.8`."""
    try:
        return str(json.loads(version_json)["cuda"]["version"])
    except (ValueError, KeyError, TypeError):
        found = re.search(r"cuda-(\d+(?:\.\d+)?)", os.path.realpath(home))
        return found.group(1) if found else None


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _importable(folder: str, name: str) -> bool:
    return name.endswith((".py", ".so")) or os.path.exists(os.path.join(folder, name, "__init__.py"))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
