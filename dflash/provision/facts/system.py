"""The system of a machine: kernel, distribution, Python, compilers, whether its root is the kernel's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dflash.provision.fact import Fact, Output
from dflash.provision.facts.here import parse_compiler_version


@dataclass(frozen=True)
class Kernel:
    """`release` as `uname -r` gives it, such as 6.8.12-4-pve."""

    system: str
    release: str
    machine: str


def _kernel(output: Output) -> Kernel:
    words = output.stdout.split()
    return Kernel(*words[:3]) if len(words) >= 3 else Kernel("", "", "")


KERNEL = Fact("kernel", ("uname", "-srm"), _kernel)


@dataclass(frozen=True)
class Distribution:
    """`id` and `version` as os-release has them (debian, 12); `name` for a person."""

    id: str
    version: str
    name: str


def _distribution(output: Output) -> Distribution:
    found = dict(re.findall(r'^([A-Z_]+)="?(.*?)"?$', output.stdout, re.MULTILINE))
    return Distribution(found.get("ID", ""), found.get("VERSION_ID", ""), found.get("PRETTY_NAME", ""))


DISTRIBUTION = Fact("distribution", ("cat", "/etc/os-release"), _distribution)


@dataclass(frozen=True)
class Python:
    """`version` is None where there is no python3; `lacks` are modules of the standard library that it came without."""

    version: str | None
    lacks: tuple[str, ...] = ()


_MODULES = ("ctypes", "json", "ssl", "venv", "zlib")
_PYTHON = """\
import sys
from importlib.util import find_spec
print("%d.%d.%d" % sys.version_info[:3])
print(*[name for name in sys.argv[1:] if find_spec(name) is None])
"""


def _python(output: Output) -> Python:
    lines = output.stdout.splitlines()
    if not (output.ok and lines):
        return Python(None)
    return Python(lines[0], tuple(lines[1].split()) if len(lines) > 1 else ())


PYTHON = Fact("python", ("python3", "-ISc", _PYTHON, *_MODULES), _python)


_COMPILERS = """\
for each in g++ clang++ nvcc; do
    path=$(command -v "$each") && echo "$each $path $("$path" --version 2>/dev/null | grep -m1 -E '[0-9]+\\.[0-9]+')"
done
:
"""


def _compilers(output: Output) -> dict[str, str]:
    found = {}
    for line in output.stdout.splitlines():
        name, _, rest = line.partition(" ")
        found[name] = parse_compiler_version(rest.partition(" ")[2])
    return found


COMPILERS = Fact("compilers", ("sh", "-c", _COMPILERS), _compilers)
"""The version of each compiler that is on PATH, by its name."""


def _has_own_users(output: Output) -> bool:
    first = output.stdout.split()
    return len(first) >= 3 and not (first[0] == first[1] == "0" and int(first[2]) >= 2**32 - 1)


OWN_USERS = Fact("own users", ("cat", "/proc/self/uid_map"), _has_own_users)
"""Whether its users are others than the kernel's: an unprivileged container."""
