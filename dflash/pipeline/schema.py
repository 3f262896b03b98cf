"""A pipeline's YAML, checked: steps with known kinds, valid configs, and needs that form no circle."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dflash.document import Document, Place, load
from dflash.errors import ConfigError, UsageError
from dflash.pipeline.condition import WhenFault, check_when
from dflash.pipeline.declaration import Declared, PipelineEntry, declared
from dflash.pipeline.files import canonical
from dflash.pipeline.kinds import StepKind
from dflash.pipeline.matrix import Axes, as_text, axes_of, combinations, declared_name, filled, names_of, part_of
from dflash.pipeline.needs import check_needs, ordered, takes_of
from dflash.pipeline.overriding import overridden
from dflash.pipeline.placement import host_of, launcher_of, refuse_launcher_in_settings, refuse_misplaced
from dflash.pipeline.policy import Limits, Retry
from dflash.validation import plain, suggestion, validated


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
    those that it was read with, and `document` is what was read then: its file may be another by now, or gone."""

    name: str
    description: str
    file: str
    steps: tuple[Step, ...]
    overrides: tuple[str, ...] = ()
    document: Document | None = field(default=None, repr=False, compare=False)

    def step(self, name: str) -> Step:
        """The step called `name`. Raises KeyError."""
        return self._by_name[name]

    @functools.cached_property
    def _by_name(self) -> dict[str, Step]:
        return {step.name: step for step in self.steps}


def load_pipeline(file: str | Path, kinds: Mapping[str, StepKind], overrides: Sequence[str] = ()) -> Pipeline:
    """Read and check a pipeline. An override is `step.key.sub=value`, which changes that step's `with`, or
    `step:key.sub=value`, which changes what it declares itself.

    Raises ConfigError with line and column, UsageError for an override, StorageError.
    """
    document = load(file)
    for override in overrides:
        document = overridden(document, override)
    entry: PipelineEntry = validated(PipelineEntry, document)
    steps = declared(entry, document)
    for step in steps.values():
        if step.entry.uses not in kinds:
            cure = suggestion(step.entry.uses, kinds, "kinds")
            what = f"there is no kind of step {step.entry.uses!r}"
            raise document.error(what, (*step.place, "uses"), cure=cure)
    check_needs(steps, document)
    takes = {name: takes_of(step, steps, kinds, document) for name, step in steps.items()}
    order = ordered(steps, document)
    making = _Making(document, kinds, steps, takes, axes_of(steps, order, takes, document))
    made = {name: making.of(name) for name in order}
    whole = tuple(making.with_lender(step, made) for each in made.values() for step in each)
    return Pipeline(entry.name, entry.description, str(file), whole, tuple(overrides), document)


class _Making:
    """Steps as they run, out of those that are declared."""

    def __init__(
        self,
        document: Document,
        kinds: Mapping[str, StepKind],
        steps: Mapping[str, Declared],
        takes: Mapping[str, Mapping[str, str]],
        axes: Mapping[str, Axes],
    ) -> None:
        self._document, self._kinds, self._steps, self._takes, self._axes = document, kinds, steps, takes, axes
        self._made = {name: combinations(each) for name, each in axes.items()}
        self._names = {name: names_of(name, made) for name, made in self._made.items()}
        self._lookup = {
            name: {part_of(each, each): made for each, made in zip(self._made[name], names, strict=True)}
            for name, names in self._names.items()
        }

    def of(self, name: str) -> list[Step]:
        """The steps of a declared one: one for each combination."""
        pairs = zip(self._names[name], self._made[name], strict=True)
        return [self._step(self._steps[name], made, combination) for made, combination in pairs]

    def _step(self, step: Declared, name: str, combination: Mapping[str, Any]) -> Step:
        entry, kind, takes = step.entry, self._kinds[step.entry.uses], self._takes[step.entry.name]
        given = {each: self._given(giver, combination) for each, giver in takes.items()}
        taken = dict(zip(takes.values(), given.values(), strict=True))
        needs = {need: [taken[need]] if need in taken else self._names[need] for need in entry.needs}
        config = self._config(step, kind, name, combination)
        host = host_of(self._filled(step, "host", entry.host, combination), self._document, (*step.place, "host"))
        launcher = launcher_of(self._filled(step, "launcher", entry.launcher, combination), kind, step, self._document)
        inputs = tuple(_normal(as_text(each)) for each in self._filled(step, "inputs", entry.inputs, combination))
        refuse_misplaced(step, host, launcher, inputs, config, self._document)
        return Step(
            name,
            kind,
            tuple(each for need in needs.values() for each in need),
            config,
            given,
            None,
            self._when(step, needs),
            entry.retry.policy() if entry.retry else Retry(),
            entry.limits(),
            inputs,
            tuple(entry.outputs),
            self._env(step, combination),
            tuple(entry.secrets),
            host,
            launcher,
            dict(combination),
            step.is_last,
        )

    def _given(self, giver: str, combination: Mapping[str, Any]) -> str:
        """Which of the steps of `giver` has the part of the combination that is its own."""
        return self._lookup[giver][part_of(combination, self._axes[giver])]

    def _filled(self, step: Declared, key: str, value: Any, combination: Mapping[str, Any]) -> Any:
        return filled(value, combination, self._document, (*step.place, key))

    def _env(self, step: Declared, combination: Mapping[str, Any]) -> dict[str, str]:
        found = {key: as_text(each) for key, each in self._filled(step, "env", step.entry.env, combination).items()}
        for key, text in found.items():
            if "\0" in text:  # by the matrix
                what, cure = f"{text!r} has a NUL, which no variable can hold", "remove it from the matrix"
                raise self._document.error(what, (*step.place, "env", key), cure=cure)
        return found

    def _when(self, step: Declared, needs: Mapping[str, Sequence[str]]) -> str:
        entry = step.entry
        try:
            return check_when(entry.when, self._axes[entry.name], needs, self._steps, step.is_last)
        except WhenFault as fault:
            place = (*step.place, "when")
            raise self._document.error(fault.what, place, offset=fault.offset, cure=fault.cure) from None

    def _config(self, step: Declared, kind: StepKind, name: str, combination: Mapping[str, Any]) -> Any:
        document, place = self._document, (*step.place, "with")
        refuse_launcher_in_settings(step, kind, document)
        value = filled(step.entry.with_, combination, document, place)
        try:
            return validated(kind.config, document, place, value)
        except UsageError as failure:
            options = [origin for path, origin in document.origins if path[: len(place)] == place]
            by_option = (
                options
                and isinstance(failure, ConfigError)
                and not self._is_the_files(failure, kind, place, combination)
            )
            failure.what += f", in {name}" if combination else ""
            if "with" not in document.data[step.place[0]][step.place[1]]:  # then the step itself has the fault
                raise document.error(failure.what, step.place, cure="give it under with:") from None
            if by_option:
                raise UsageError(failure.what, where=", ".join(options), cure=failure.cure) from None
            raise

    def _is_the_files(self, failure: ConfigError, kind: StepKind, place: Place, combination: Mapping[str, Any]) -> bool:
        """Whether the file has the same fault without any option; a rule over several keys points at their map."""
        alone = load(self._document.file)
        try:
            written = alone.data[place[0]][place[1]]["with"]
            validated(kind.config, alone, place, filled(written, combination, alone, place))
        except KeyError:  # no `with`: it came with the option
            return False
        except UsageError as other:
            return other.what == failure.what
        return False

    def with_lender(self, step: Step, found: Mapping[str, Sequence[Step]]) -> Step:
        """The step, with the one whose config it borrows; `found` are all steps by their declared names.

        Where that one has several combinations which agree with the step's own, they must agree in what is borrowed.
        """
        named, name = getattr(step.config, "for_step", None), declared_name(step.name)
        if named is None:
            return step
        place = (*self._steps[name].place, "with", "for_step")
        if named not in found or named == name:
            cure = suggestion(str(named), [each for each in found if each != name], "steps")
            raise self._document.error(f"for_step names {named!r}, which is no other step", place, cure=cure)
        shared = self._axes[named].keys() & step.matrix.keys()
        lenders = [each for each in found[named] if all(each.matrix[axis] == step.matrix[axis] for axis in shared)]
        if len({canonical(borrowed(step, each)) for each in lenders}) != 1:
            axes = ", ".join(axis for axis in self._axes[named] if axis not in shared) or ", ".join(shared)
            what = f"for_step names {named!r}, whose {len(found[named])} steps differ in what {name!r} does for them"
            cure = f"declare {axes} in the matrix of {name!r}; what takes from it has that matrix, too"
            raise self._document.error(what, place, cure=cure)
        return replace(step, borrows=lenders[0].name)


def borrowed(step: Step, lender: Step) -> dict[str, Any]:
    """The fields of the lender's config that decide the step's result, by path."""
    config = plain(lender.kind.config, lender.config)
    return {path: functools.reduce(operator.getitem, path.split("."), config) for path in step.kind.borrows or config}


def _normal(pattern: str) -> str:
    """A relative pattern without steps back within the project: in one that is sent there may be no such folder."""
    return pattern if os.path.isabs(pattern) else os.path.normpath(pattern)


def error_at(
    pipeline: Pipeline, step: Step, path: Place, what: str, cure: str | None, value: str | None = None
) -> UsageError:
    """An error about what a step declares at `path`, found only after the file was read: at its place there, of a
    `value` in a list at that value's, if it is written so, or else at the step's."""
    if pipeline.document is None:
        return UsageError(what, where=f"{pipeline.file}: step {step.name}", cure=cure)
    document = replace(pipeline.document, file=pipeline.file)
    name = declared_name(step.name)
    part = "finally" if step.is_last else "steps"
    places = ((part, index) for index, each in enumerate(document.data.get(part, [])) if each.get("name") == name)
    place: Place = next(places, ())
    found = document.data[place[0]][place[1]] if place else None
    for each in path:
        found = found.get(each) if isinstance(found, Mapping) else None
    if isinstance(found, list) and value in found:
        return document.error(what, (*place, *path, found.index(value)), cure=cure)
    is_written = found is not None and not isinstance(found, list)
    return document.error(what if is_written else f"step {step.name!r}: {what}", (*place, *path), cure=cure)
