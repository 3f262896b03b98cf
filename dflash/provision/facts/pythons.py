"""Every Python that a shell there would find."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.provision.fact import Fact, Output

# Also runs in Debian's python3-minimal. A virtual environment needs ensurepip, which Debian keeps apart, and what
# torch.compile builds needs Python.h. Nothing is imported that can be found instead: a check waits for this.
_TELL = """
import os, sys
from importlib.util import find_spec
try:
    import sysconfig
    header = os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))
except Exception:
    header = False
venv = all(find_spec(name) for name in ("venv", "ensurepip", "json"))
words = {True: "yes", False: "no"}
print("%s|%d.%d.%d|%s|%s" % (sys.executable, *sys.version_info[:3], words[venv], words[header]))
"""
_EACH = """
tell=$1 seen=
for name in python3 python3.8 python3.9 python3.10 python3.11 python3.12 python3.13 python3.14; do
  place=$(command -v "$name") || continue
  real=$(readlink -f -- "$place")
  case "$seen" in *"|$real|"*) continue ;; esac
  seen="$seen|$real|"
  "$place" -ISBc "$tell" 2>/dev/null
done
true
"""


@dataclass(frozen=True)
class Python:
    """An interpreter: its version, whether it can make virtual environments, whether its headers are there."""

    path: str
    version: str
    venv: bool
    headers: bool

    @property
    def minor(self) -> tuple[int, int]:
        """(3, 12) of 3.12.4."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


PYTHONS = Fact("pythons", ("sh", "-c", _EACH, "sh", _TELL), lambda output: parse_pythons(output))


def parse_pythons(output: Output) -> tuple[Python, ...]:
    """One line each; `python3` first."""
    rows = [line.split("|") for line in output.stdout.splitlines() if line.count("|") == 3]
    return tuple(Python(path, version, venv == "yes", headers == "yes") for path, version, venv, headers in rows)
