"""A step with a matrix becomes one step for each combination of its values, and so does what takes from it.

    matrix: {seed: [1, 2], lr: [1e-3, 5e-4]}    four steps, train@seed=1,lr=0.001 and so on
    with: {seed: "${{ matrix.seed }}"}          the value, with its type; within a longer text, as text

A step that takes what such a step makes is made once for each of its combinations, too. Values are matched by name:
where two needs have a `seed`, both have the same one. A need that only orders waits for all combinations.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dflash.document import Document, Place
from dflash.pipeline.declaration import Declared
from dflash.pipeline.files import canonical, digest
from dflash.validation import suggestion

Axes = Mapping[str, Sequence[Any]]
"""The values of each part of a matrix, by its name."""

MOST_STEPS = 10_000
"""A pipeline of more steps is an accident."""

_LONGEST_NAME = 120  # a file's name may have 255 bytes, and gets a suffix
_REFERENCE = re.compile(r"\$\{\{([^{}]*)\}\}")
_MATRIX = re.compile(r"\s*matrix\.([A-Za-z_][A-Za-z0-9_]*)\s*")


def axes_of(
    steps: Mapping[str, Declared], order: Sequence[str], takes: Mapping[str, Mapping[str, str]], document: Document
) -> dict[str, dict[str, list[Any]]]:
    """The matrix of each step, its own and what comes with the steps that it takes from.

    Raises ConfigError for values that are given twice, for two steps' values of one name that differ, so that it can
    not be told which goes with which, and for too many steps.
    """
    found: dict[str, dict[str, list[Any]]] = {}
    total = 0
    for name in order:
        step = steps[name]
        axes: dict[str, list[Any]] = {}
        origin: dict[str, str] = {}
        for giver in takes[name].values():
            for axis, values in found[giver].items():
                if canonical(axes.setdefault(axis, values)) != canonical(values):
                    what = (
                        f"step {name!r} takes from {origin[axis]!r}, made for {axis} {_listed(axes[axis])}, and from "
                        f"{giver!r}, made for {axis} {_listed(values)}: which go together can not be told"
                    )
                    cure = f"give both the same values, or name one of them otherwise than {axis}"
                    raise document.error(what, (*step.place, "needs"), cure=cure)
                origin.setdefault(axis, giver)
        for axis, values in step.entry.matrix.items():
            place = (*step.place, "matrix", axis)
            texts = [canonical(value) for value in values]
            for index, text in enumerate(texts):
                if text in texts[:index]:
                    raise document.error(f"{text} is given twice", (*place, index), cure="remove one")
            if canonical(axes.setdefault(axis, values)) != canonical(values):
                what = f"{axis} comes with {origin[axis]!r}, from which {name!r} takes, as {_listed(axes[axis])}"
                raise document.error(what, place, key=True, cure="remove it here, or name it otherwise")
        found[name] = axes
        total += _count(axes)
        if total > MOST_STEPS:
            what = f"that makes {total:,} steps, and a pipeline has {MOST_STEPS:,} at most"
            raise document.error(what, (*step.place, "matrix"), cure="give fewer values")
    return found


def combinations(axes: Axes) -> list[dict[str, Any]]:
    """Every combination of the values, the last name's fastest; one that is empty without a matrix."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def names_of(name: str, made: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each combination of the step `name`: unique, and valid as a file's name."""
    if list(made) == [{}]:
        return [name]
    names = [f"{name}@{','.join(f'{axis}={_word(value)}' for axis, value in each.items())}" for each in made]
    count = Counter(names)
    return [
        each
        if count[each] == 1 and len(each) <= _LONGEST_NAME
        else f"{each[:_LONGEST_NAME]}~{digest(canonical(combination))[:8]}"
        for each, combination in zip(names, made, strict=True)
    ]


def declared_name(name: str) -> str:
    """The name under which a step of that name is declared."""
    return name.partition("@")[0]


def part_of(combination: Mapping[str, Any], axes: Axes) -> str:
    """Which combination of `axes` goes with `combination`, as text to look it up by."""
    return canonical({axis: combination[axis] for axis in axes if axis in combination})


def filled(value: Any, combination: Mapping[str, Any], document: Document, place: Place) -> Any:
    """`value`, which is at `place`, with every reference replaced. One that is all of a text becomes the value itself.

    Raises ConfigError for a reference to what the matrix does not have.
    """
    if isinstance(value, dict):
        return {key: filled(each, combination, document, (*place, key)) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, combination, document, (*place, index)) for index, each in enumerate(value)]
    if not isinstance(value, str) or "${{" not in value:
        return value

    def replaced(found: re.Match[str]) -> Any:
        told = _MATRIX.fullmatch(found[1])
        if told and told[1] in combination:
            return combination[told[1]]
        if not told:
            what, cure = f"{found[0]} is no reference", "write ${{ matrix.NAME }}"
        elif combination:
            what, cure = f"the matrix has no {told[1]!r}", suggestion(told[1], combination, "names")
        else:
            what, cure = f"there is no matrix that has {told[1]!r}", "give the step one: matrix: {NAME: [...]}"
        raise document.error(what, place, offset=found.start(), cure=cure)

    if value.count("${{") != len(_REFERENCE.findall(value)):
        raise document.error("a reference is not closed", place, cure="write ${{ matrix.NAME }}")
    whole = _REFERENCE.fullmatch(value.strip())
    return replaced(whole) if whole else _REFERENCE.sub(lambda found: as_text(replaced(found)), value)


def as_text(value: Any) -> str:
    """A value as it stands within a text."""
    return value if isinstance(value, str) else canonical(value)


def _word(value: Any) -> str:
    """A value as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", as_text(value)).strip("-") or "empty"


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(as_text, values))


def _count(axes: Axes) -> int:
    total = 1
    for values in axes.values():
        total *= len(values)
    return total
