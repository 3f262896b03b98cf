"""What a check found, as data: judged once, then printed, recorded or raised by others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["ok", "warn", "block"]


@dataclass(frozen=True)
class Finding:
    """One subject: what was `found`, whether work may go on, and what to do (`cure`) when it may not.

    `name` says which kind of finding it is, for programs; `cause` how such a thing comes about; `layer` where it was
    found, when there are several on the way to a machine.
    """

    severity: Severity
    subject: str
    found: str
    cure: str = ""
    name: str = ""
    cause: str = ""
    layer: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Blocking findings, then warnings, then the rest; each in the order given."""
    return sorted(findings, key=lambda each: ("block", "warn", "ok").index(each.severity))
