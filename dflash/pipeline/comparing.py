"""What differs between two runs, field by field, from their records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Difference:
    """A field of two records, as a path such as `environment.torch`. "blocking": the second can not be a replay of the
    first; "tolerable": it can, and may give other numbers, for which `cause` says how that comes about."""

    field: str
    old: Any
    new: Any
    severity: Literal["tolerable", "blocking"]
    cause: str = ""
