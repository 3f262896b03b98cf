"""A pipeline's YAML, checked: steps with known kinds, valid configs, and needs that form no cycle."""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from dflash.document import Document, Place, load, parse_scalar
from dflash.errors import ConfigError, UsageError
from dflash.pipeline.kinds import StepKind
from dflash.pipeline.policy import Limits, Retry
from dflash.validation import suggestion, validated


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,62}", text, re.ASCII):
        rule = "is made of at most 63 small letters, digits, '_' and '-', and starts with a letter or digit"
        raise ValueError(f"{text!r} is no name: a name {rule}")
    return text


_Name = Annotated[str, AfterValidator(_name)]


class _StepEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: _Name
    uses: str
    needs: list[str] = []
    with_: dict[str, Any] = Field(default={}, alias="with")


class _PipelineEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: _Name
    description: str = ""
    steps: Annotated[list[_StepEntry], Field(min_length=1)]


@dataclass(frozen=True)
class Step:
    """One step. `takes` maps each kind it is given to the needed step that gives it; `borrows` names the step
    whose config it is shown (its `for_step`).

    `inputs` are files and patterns beside the pipeline's own (relative to the project, or absolute) whose contents are
    part of its key; `outputs` are patterns below its folder of what it must have made. `env` is set for its process,
    `secrets` are names of variables that it is given from whoever starts the run. `when` is an expression, empty for
    always. `host` is where it runs (None: where the run is), `launcher` how a training's workers are started (None: as
    threads). `matrix` are the values that this step has of the matrix that it is made from. `is_last`: it runs after
    all others, however they ended (`finally`).
    """

    name: str
    kind: StepKind
    needs: tuple[str, ...]
    config: Any
    takes: Mapping[str, str]
    borrows: str | None
    when: str = ""
    retry: Retry = field(default_factory=Retry)
    limits: Limits = field(default_factory=Limits)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    host: str | None = None
    launcher: Any = None
    matrix: Mapping[str, Any] = field(default_factory=dict)
    is_last: bool = False


@dataclass(frozen=True)
class Pipeline:
    """A checked pipeline; `steps` in an order in which each follows what it needs, else as in the file. `overrides` are
    those that it was read with."""

    name: str
    description: str
    file: str
    steps: tuple[Step, ...]
    overrides: tuple[str, ...] = ()

    def step(self, name: str) -> Step:
        """The step called `name`. Raises KeyError."""
        return next(step for step in self.steps if step.name == name)


def load_pipeline(file: str | Path, kinds: Mapping[str, StepKind], overrides: Sequence[str] = ()) -> Pipeline:
    """Read and check a pipeline; each override is `step.key.sub=value` and changes that step's `with`.

    Raises ConfigError with line and column, UsageError for an override, StorageError.
    """
    document = load(file)
    for override in overrides:
        document = _overridden(document, override)
    entry: _PipelineEntry = validated(_PipelineEntry, document)
    places = _places(entry, document)
    configs = {step.name: _config(step, index, kinds, document) for index, step in enumerate(entry.steps)}
    _check_needs(entry, places, document)
    steps = {
        step.name: Step(
            step.name,
            kinds[step.uses],
            tuple(step.needs),
            configs[step.name],
            _takes(step, index, entry, kinds, document),
            _borrows(step, index, configs, places, document),
        )
        for index, step in enumerate(entry.steps)
    }
    order = _ordered(entry, document)
    return Pipeline(entry.name, entry.description, str(file), tuple(steps[name] for name in order), tuple(overrides))


def _overridden(document: Document, override: str) -> Document:
    origin = f"--set {override}"
    target, equals, text = override.partition("=")
    parts = target.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise UsageError("this is not step.key=value", where=origin, cure="try --set train.steps=100")
    data = document.data if isinstance(document.data, dict) else {}
    steps = data.get("steps") if isinstance(data.get("steps"), list) else []
    names = [step.get("name") if isinstance(step, dict) else None for step in steps or []]
    if parts[0] not in names:
        cure = suggestion(parts[0], [name for name in names if isinstance(name, str)], "steps")
        raise UsageError(f"the pipeline has no step {parts[0]!r}", where=origin, cure=cure)
    try:
        value = parse_scalar(text)
    except (ConfigError, ValueError) as failure:
        what = failure.what if isinstance(failure, ConfigError) else str(failure)
        raise UsageError(f"the value can not be read: {what}", where=origin) from None
    place = ("steps", names.index(parts[0]), "with")
    try:
        return document.with_value((*place, *parts[1:]), value, origin)
    except UsageError as failure:  # it names the place in the file, where a person knows the step
        what = failure.what.replace(".".join(map(str, place)), parts[0])
        raise UsageError(what, where=origin) from None


def _places(entry: _PipelineEntry, document: Document) -> dict[str, int]:
    places: dict[str, int] = {}
    for index, step in enumerate(entry.steps):
        if step.name in places:
            line, _ = document.position(("steps", places[step.name], "name"))
            what = f"the name {step.name!r} is already given to a step on line {line}"
            raise document.error(what, ("steps", index, "name"), cure="give each step a name of its own")
        places[step.name] = index
    return places


def _config(step: _StepEntry, index: int, kinds: Mapping[str, StepKind], document: Document) -> Any:
    if step.uses not in kinds:
        cure = suggestion(step.uses, kinds, "kinds")
        raise document.error(f"there is no kind of step {step.uses!r}", ("steps", index, "uses"), cure=cure)
    place = ("steps", index, "with")
    kind = kinds[step.uses].config
    if "with" not in document.data["steps"][index]:
        document = document.with_value(place, {}, "")
        try:
            return validated(kind, document, place)
        except UsageError as failure:  # there is no `with` to point at: the step itself has the fault
            raise document.error(failure.what, ("steps", index), cure="give it under with:") from None
    try:
        return validated(kind, document, place)
    except ConfigError as failure:
        options = [origin for path, origin in document.origins if path[: len(place)] == place]
        if options and not _is_the_files(failure, kind, document, place):
            raise UsageError(failure.what, where=", ".join(options), cure=failure.cure) from None
        raise


def _is_the_files(failure: ConfigError, kind: Any, document: Document, place: Place) -> bool:
    """Whether the file has the same fault without any option; a rule over several keys points at their map."""
    try:
        validated(kind, load(document.file), place)
    except KeyError:  # no `with`: it came with the option
        return False
    except UsageError as alone:
        return alone.what == failure.what
    return False


def _check_needs(entry: _PipelineEntry, places: Mapping[str, int], document: Document) -> None:
    for index, step in enumerate(entry.steps):
        for number, need in enumerate(step.needs):
            place = ("steps", index, "needs", number)
            if need not in places:
                cure = suggestion(need, [name for name in places if name != step.name], "steps")
                raise document.error(f"step {step.name!r} needs {need!r}, which is no step", place, cure=cure)
            if need in step.needs[:number]:
                raise document.error(f"{need!r} is needed twice", place, cure="remove one")


def _takes(
    step: _StepEntry, index: int, entry: _PipelineEntry, kinds: Mapping[str, StepKind], document: Document
) -> dict[str, str]:
    uses = {each.name: each.uses for each in entry.steps}
    takes: dict[str, str] = {}
    for kind in kinds[step.uses].takes:
        given = [need for need in step.needs if uses[need] == kind]
        place: tuple[str | int, ...] = ("steps", index, "needs") if step.needs else ("steps", index)
        if len(given) > 1:
            what = f"step {step.name!r} takes one {kind}, and needs {' and '.join(given)}"
            raise document.error(what, place, cure="keep one")
        if not given:
            makers = [name for name, used in uses.items() if used == kind]
            cure = f"add {makers[0]!r} to its needs" if makers else f"add a step that uses {kind}"
            what = f"step {step.name!r} takes what a step of kind {kind!r} makes, and needs none"
            raise document.error(what, place, cure=cure)
        takes[kind] = given[0]
    return takes


def _borrows(
    step: _StepEntry, index: int, configs: Mapping[str, Any], places: Mapping[str, int], document: Document
) -> str | None:
    named = getattr(configs[step.name], "for_step", None)
    if named is None:
        return None
    if named not in places or named == step.name:
        cure = suggestion(str(named), [name for name in places if name != step.name], "steps")
        what = f"for_step names {named!r}, which is no other step"
        raise document.error(what, ("steps", index, "with", "for_step"), cure=cure)
    return str(named)


def _ordered(entry: _PipelineEntry, document: Document) -> list[str]:
    """Names so that each follows its needs; among those that could come next, the first in the file."""
    index = {step.name: number for number, step in enumerate(entry.steps)}
    waiting = {step.name: set(step.needs) for step in entry.steps}
    order: list[str] = []
    followers: dict[str, list[str]] = {}
    for step in entry.steps:
        for need in step.needs:
            followers.setdefault(need, []).append(step.name)
    places = [index[name] for name, needs in waiting.items() if not needs]  # sorted, so a heap already
    while places:
        name = entry.steps[heapq.heappop(places)].name
        order.append(name)
        for follower in followers.get(name, ()):
            waiting[follower].discard(name)
            if not waiting[follower]:
                heapq.heappush(places, index[follower])
    if len(order) < len(index):
        raise _cycle(entry, index, set(index) - set(order), document)
    return order


def _cycle(entry: _PipelineEntry, index: Mapping[str, int], stuck: set[str], document: Document) -> UsageError:
    path = [min(stuck, key=index.__getitem__)]
    while path[-1] not in path[:-1]:
        path.append(next(need for need in entry.steps[index[path[-1]]].needs if need in stuck))
    path = path[path.index(path[-1]) :]
    needs = entry.steps[index[path[0]]].needs
    place = ("steps", index[path[0]], "needs", needs.index(path[1]))
    what = f"steps need each other in a circle: {' -> '.join(path)}"
    return document.error(what, place, cure="remove one of these needs")
