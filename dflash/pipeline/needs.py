"""What the steps of a file need of each other: whether it is there, what is taken, and in which order all can run."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from dflash.document import Document
from dflash.errors import UsageError
from dflash.pipeline.declaration import Declared
from dflash.pipeline.kinds import StepKind
from dflash.validation import suggestion


def check_needs(steps: Mapping[str, Declared], document: Document) -> None:
    """Raise ConfigError for a need that is no step, the step itself, named twice, or that runs after all others."""
    for name, step in steps.items():
        seen: set[str] = set()
        for number, need in enumerate(step.entry.needs):
            place = (*step.place, "needs", number)
            if need not in steps:
                others = [each for each, other in steps.items() if each != name and not other.is_last]
                cure = suggestion(need, others, "steps")
                raise document.error(f"step {name!r} needs {need!r}, which is no step", place, cure=cure)
            if need == name:
                raise document.error(f"step {name!r} needs itself", place, cure="remove it")
            if need in seen:
                raise document.error(f"{need!r} is needed twice", place, cure="remove one")
            if steps[need].is_last:
                what = f"step {name!r} needs {need!r}, which is in finally: and runs after all others"
                raise document.error(what, place, cure="remove it, or move that step to steps:")
            seen.add(need)


def takes_of(
    step: Declared, steps: Mapping[str, Declared], kinds: Mapping[str, StepKind], document: Document
) -> dict[str, str]:
    """By kind, the needed step from which `step` takes it; by their names all of them, where its kind `takes_needs`.

    Raises ConfigError for a kind that it lacks, or has twice.
    """
    name, needs = step.entry.name, step.entry.needs
    takes = {need: need for need in needs} if kinds[step.entry.uses].takes_needs else {}
    for kind in kinds[step.entry.uses].takes:
        given = [need for need in needs if steps[need].entry.uses == kind]
        place = (*step.place, "needs") if needs else step.place
        if step.is_last:
            what = f"step {name!r} takes what a step of kind {kind!r} makes, and in finally: nothing is sure to be made"
            raise document.error(what, (*step.place, "uses"), cure="move it to steps:")
        if len(given) > 1:
            what = f"step {name!r} takes one {kind}, and needs {' and '.join(given)}"
            raise document.error(what, place, cure="keep one")
        if not given:
            makers = [each for each, other in steps.items() if other.entry.uses == kind]
            cure = f"add {makers[0]!r} to its needs" if makers else f"add a step that uses {kind}"
            what = f"step {name!r} takes what a step of kind {kind!r} makes, and needs none"
            raise document.error(what, place, cure=cure)
        takes[kind] = given[0]
    return takes


def ordered(steps: Mapping[str, Declared], document: Document) -> list[str]:
    """Names so that each follows its needs; among those that could come next, the first in the file, where `finally` is
    last. Raises ConfigError for a circle."""
    names = list(steps)
    index = {name: number for number, name in enumerate(names)}
    waiting = {name: set(step.entry.needs) for name, step in steps.items()}
    order: list[str] = []
    followers: dict[str, list[str]] = {}
    for name, step in steps.items():
        for need in step.entry.needs:
            followers.setdefault(need, []).append(name)
    # What is in finally: has no followers, and follows all others here whatever it needs.
    places = [index[name] for name, needs in waiting.items() if not needs and not steps[name].is_last]
    while places:  # sorted, so a heap already
        name = names[heapq.heappop(places)]
        order.append(name)
        for follower in followers.get(name, ()):
            waiting[follower].discard(name)
            if not waiting[follower] and not steps[follower].is_last:
                heapq.heappush(places, index[follower])
    last = [name for name, step in steps.items() if step.is_last]
    if len(order) + len(last) < len(steps):
        raise _circle(steps, set(steps) - set(order) - set(last), document)
    return order + last


def _circle(steps: Mapping[str, Declared], stuck: set[str], document: Document) -> UsageError:
    path = [next(name for name in steps if name in stuck)]
    while path[-1] not in path[:-1]:
        path.append(next(need for need in steps[path[-1]].entry.needs if need in stuck))
    path = path[path.index(path[-1]) :]
    first = steps[path[0]]
    place = (*first.place, "needs", first.entry.needs.index(path[1]))
    what = f"steps need each other in a circle: {' -> '.join(path)}"
    return document.error(what, place, cure="remove one of these needs")
