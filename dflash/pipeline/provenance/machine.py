"""What of a machine can change numbers: GPUs and how they reach each other, driver, processor, C library, variables.

The same facts of this machine and of any that a chain leads to, so that a run's record and a probe can be compared.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dflash.pipeline.files import digest
from dflash.pipeline.provenance.variables import kept
from dflash.provision.fact import HUNG, MISSING, PATIENCE_S, Fact, Facts, Output
from dflash.provision.facts.files import text_of
from dflash.provision.facts.gpus import GPUS
from dflash.provision.facts.links import TOPOLOGY, Matrix
from dflash.provision.facts.nvidia import KERNEL_MODULE
from dflash.provision.facts.system import KERNEL

PROCESSOR = text_of("/proc/cpuinfo")
LIBC = Fact("C library", ("getconf", "GNU_LIBC_VERSION"), lambda output: output.stdout.strip() or None)


def _variables(output: Output) -> Mapping[str, str]:
    words = output.stdout.split("\0")
    return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}


VARIABLES = Fact("variables", ("env", "-0"), _variables)
FACTS: tuple[Fact[Any], ...] = (GPUS, TOPOLOGY, KERNEL_MODULE, KERNEL, PROCESSOR, LIBC, VARIABLES)


def described(known: Facts, secrets: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """The parts `gpus`, `environment` and `variables` of a provenance, as far as a machine alone has them. None: it did
    not say; no GPU at all is an empty list of models."""
    found, driver = known[GPUS], known[KERNEL_MODULE].version
    return {
        "gpus": {
            "models": [each.name for each in found.gpus] if found.gpus or driver is None else None,
            "driver": driver,
            "topology": _topology(known[TOPOLOGY]),
            **_processor(known[PROCESSOR] or ""),
        },
        "environment": {"machine": known[KERNEL].machine or None, "libc": known[LIBC]},
        "variables": {"runner": kept(known[VARIABLES], secrets)},
    }


def here() -> Facts:
    """The facts of this machine, for a process of this environment."""
    with ThreadPoolExecutor(len(FACTS)) as pool:
        return Facts(dict(zip(FACTS, pool.map(_asked, FACTS), strict=True)))


def _asked(fact: Fact[Any]) -> Output:
    try:
        environ = os.environ if fact is VARIABLES else {**os.environ, "LC_ALL": "C"}
        command = subprocess.run(fact.argv, capture_output=True, env=environ, check=False, timeout=PATIENCE_S)
    except OSError as failure:
        return Output(MISSING, "", str(failure))
    except subprocess.TimeoutExpired:
        return Output(HUNG)
    return Output(command.returncode, command.stdout.decode(errors="replace"), command.stderr.decode(errors="replace"))


def _topology(matrix: Matrix) -> str | None:
    """Each pair once, such as `0-1 NV18, 0-2 SYS`."""
    return ", ".join(f"{a}-{b} {way}" for (a, b), way in sorted(matrix.items()) if a < b) or None


def _processor(cpuinfo: str) -> dict[str, Any]:
    """Its name, a hash of the instruction sets that kernels are chosen by, and how many processors there are."""
    name = re.search(r"^(?:model name|CPU part)\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    sets = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return {
        "processor": name[1].strip() if name else None,
        "instructions": digest(" ".join(sorted(sets[1].split())))[:16] if sets else None,
        "cpus": len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE)) or None,
    }
