"""The driver stays loaded: else each start of a program on an idle GPU initialises that anew, which takes seconds, and
settings are forgotten in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import DFlashError
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.persistence import PERSISTENCE, PERSISTENCED
from dflash.provision.operation import Action, Change, Kept


@dataclass(frozen=True)
class PersistenceMode:
    """All GPUs are in persistence mode; by NVIDIA's daemon, which survives a restart, where a package brought that."""

    def facts(self) -> Sequence[Fact[Any]]:
        return [PERSISTENCE, PERSISTENCED]

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        now, unit = known[PERSISTENCE], known[PERSISTENCED]
        if now.error:
            raise DFlashError(
                f"persistence can not be told: {now.error}", cure="install the NVIDIA driver there, or mend it"
            )
        off = [index for index, on in now.modes.items() if not on]
        if not off:
            yield Kept("persistence", f"all {len(now.modes)} GPUs are in persistence mode")
            return
        before = "\n".join(f"GPU {index} {_word(on)}" for index, on in now.modes.items())
        after = "\n".join(f"GPU {index} on" for index in now.modes)
        actions = [Action(("nvidia-smi", "-pm", "1"))]
        if unit and (unit.get("ActiveState") != "active" or unit.get("UnitFileState") == "disabled"):
            # Distributions start it with --no-persistence-mode, so that it alone changes nothing.
            actions.insert(0, Action(("systemctl", "enable", "--now", "nvidia-persistenced.service")))
        yield Change("persistence", before, after, tuple(actions))


def _word(on: bool) -> str:
    return "on" if on else "off"
