"""What differs between a step's key as it was and as it is, and how a person reads that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash.pipeline.files import canonical

_MOST = 60  # characters of one side
_BEFORE = 20  # of those before the first that differs


@dataclass(frozen=True)
class Change:
    """A field that differs between a step's key as it was and as it is, by its path; ABSENT on the side that has none.

    `str()` is how a person reads it: `config.steps: 5 -> 7`.
    """

    field: str
    old: Any
    new: Any

    def __str__(self) -> str:
        if self.old is ABSENT:
            return f"{self.field}: added, {_cut(_text(self.new))}"
        if self.new is ABSENT:
            return f"{self.field}: removed, was {_cut(_text(self.old))}"
        old, new = _pair(self.old, self.new)
        return f"{self.field}: {old} -> {new}"

    def as_json(self) -> dict[str, Any]:
        """For a program, to which null stands for a side that has none."""
        return {
            "field": self.field,
            "old": None if self.old is ABSENT else self.old,
            "new": None if self.new is ABSENT else self.new,
        }


ABSENT: Any = object()


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What changed between two steps' fields, in the order of the fields."""
    before, after = _flat(old), _flat(new)
    pairs = {path: (before.get(path, ABSENT), after.get(path, ABSENT)) for path in [*after, *before]}
    return [Change(path, *pair) for path, pair in pairs.items() if pair[0] != pair[1]]


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        return {
            inner: leaf
            for name, each in value.items()
            for inner, leaf in _flat(each, f"{path}.{name}" if path else str(name)).items()
        }
    return {path: value} if path and value != {} else {}


def _pair(old: Any, new: Any) -> tuple[str, str]:
    """Both sides, cut to a line around the first character in which they differ."""
    one, other = _text(old), _text(new)
    if one == other:  # as 5 and "5" are
        one, other = canonical(old), canonical(new)
    if max(len(one), len(other)) <= _MOST:
        return one, other
    pairs = enumerate(zip(one, other, strict=False))
    differs = next((at for at, (each, its) in pairs if each != its), min(len(one), len(other)))
    begin = max(0, differs - _BEFORE)
    return _cut(one, begin), _cut(other, begin)


def _cut(text: str, begin: int = 0) -> str:
    end = begin + _MOST
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"


def _text(value: Any) -> str:
    if isinstance(value, str):
        is_hash = len(value) == 64 and not set(value) - set("0123456789abcdef")
        return value[:12] if is_hash else value or "none"
    return canonical(value)
