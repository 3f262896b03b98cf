"""The user-space half of NVIDIA's driver on a host: its files, by the names under which programs look for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash.provision.fact import Fact, Output

_FILES = "PATH=$PATH:/usr/sbin:/sbin; ldconfig -p; command -v nvidia-smi"

_COMPUTE = "cuda|cudadebugger|nvidia-ml|nvidia-ptxjitcompiler|nvidia-nvvm|nvidia-gpucomp"
_LIBRARY = re.compile(rf"\s*(lib(?:{_COMPUTE})\.so\.[0-9.]+) \(libc6,(?:x86-64|AArch64)[^)]*\) => (/\S+)")


@dataclass(frozen=True)
class Driver:
    """`libraries` for computing, path by soname; `programs`: nvidia-smi, if there."""

    libraries: Mapping[str, str] = field(default_factory=dict)
    programs: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Every path, the places of libraries without the links /lib and /lib64, which a mount can not go through."""
        found = (re.sub(r"^/lib", "/usr/lib", path) for path in (*self.libraries.values(), *self.programs))
        return tuple(sorted(found))


def parse_driver(output: Output) -> Driver:
    """What `ldconfig -p` lists; of a library listed twice, the first, which programs get."""
    libraries: dict[str, str] = {}
    for line in output.stdout.splitlines():
        if match := _LIBRARY.fullmatch(line):
            libraries.setdefault(match[1], match[2])
    return Driver(libraries, tuple(re.findall(r"^/\S*/nvidia-smi$", output.stdout, re.MULTILINE)))


DRIVER = Fact("driver files", ("sh", "-c", _FILES), parse_driver)


def is_driver_file(path: str) -> bool:
    """Whether a path inside a container is of a kind that `DRIVER` finds."""
    return bool(re.search(rf"/(lib({_COMPUTE})\.so\.[0-9.]+|nvidia-smi)$", path))
