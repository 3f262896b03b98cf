"""Whether the driver stays loaded when nobody uses a GPU, and whether its devices can be used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dflash.provision.fact import MISSING, Fact, Output


@dataclass(frozen=True)
class Persistence:
    """Whether each GPU is in persistence mode, by its index; `error` is why nvidia-smi does not tell."""

    modes: Mapping[int, bool]
    error: str = ""


_QUERY = ("nvidia-smi", "--query-gpu=index,persistence_mode", "--format=csv,noheader")
PERSISTENCE = Fact("persistence", _QUERY, lambda output: parse_persistence(output))


def parse_persistence(output: Output) -> Persistence:
    """`0, Enabled`, a line for each GPU. nvidia-smi complains on standard output."""
    if output.status == MISSING:
        return Persistence({}, "there is no nvidia-smi")
    rows = re.findall(r"^(\d+), (Enabled|Disabled)\s*$", output.stdout, re.MULTILINE)
    if not output.ok or not rows:
        return Persistence({}, " ".join((output.stdout + output.stderr).split()) or f"it ended with {output.status}")
    return Persistence({int(index): mode == "Enabled" for index, mode in rows})


# systemctl says `not-found` for a unit that no package brought, and nothing runs it in most containers.
_UNIT = ("systemctl", "show", "--property=LoadState,UnitFileState,ActiveState", "nvidia-persistenced.service")
PERSISTENCED = Fact("persistenced", _UNIT, lambda output: parse_unit(output))
"""The states of the unit nvidia-persistenced; empty where there is no such unit."""


def parse_unit(output: Output) -> Mapping[str, str]:
    """`Property=value` lines."""
    states = dict(line.split("=", 1) for line in output.stdout.splitlines() if "=" in line)
    return states if output.ok and states.get("LoadState") == "loaded" else {}
