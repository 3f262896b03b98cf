"""What a pipeline's file may hold: each entry by itself, and not yet against the others."""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from dflash.document import Document, Place
from dflash.pipeline.policy import Limits, Retry
from dflash.validation import suggestion

_STRICT = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S = 1e9  # thirty years

SPELLED: Mapping[str, str] = {
    "timeout": "timeout",
    "no_output": "no_output",
    "lost_connection": "lost",
    "out_of_memory": "memory",
    "exit": "exit",
}
"""How a file spells the reasons of policy.REASONS."""
_ON = [word for word, reason in SPELLED.items() if reason in Retry.on]

_NAME = r"[a-z0-9][a-z0-9_-]{0,62}"
_DURATION = r"([0-9]+(?:\.[0-9]+)?)([smhd])"
_SECRET = r"[A-Z][A-Z0-9_]*"


def _name(text: str) -> str:
    if not re.fullmatch(_NAME, text):
        rule = "is made of at most 63 small letters, digits, '_' and '-', and starts with a letter or digit"
        raise ValueError(f"{text!r} is no name: a name {rule}")
    return text


def _seconds(value: Any) -> float:
    if isinstance(value, str) and (told := re.fullmatch(_DURATION, value)):
        value = float(told[1]) * _UNITS[told[2]]
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < _LONGEST_S:
        raise ValueError(f"{value!r} is no duration: write 90s, 20m, 4h, 2d or a number of seconds above 0")
    return float(value)


def _reason(value: Any) -> str | int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 255:
        return value
    if not isinstance(value, str) or value not in SPELLED:
        cure = suggestion(str(value).replace(" ", "_"), SPELLED, "reasons")
        raise ValueError(f"{value!r} is no reason and no exit status from 1 to 255; {cure}")
    return SPELLED[value]


def _attempts(value: Any) -> Any:
    return {"attempts": value} if isinstance(value, int) and not isinstance(value, bool) else value


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{value!r} is not text; put it in quotes")
    return value


def _condition(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _secret(name: str) -> str:
    if not re.fullmatch(_SECRET, name):
        raise ValueError(f"{name!r} names no secret: write the name of a variable in capitals, as in HF_TOKEN")
    return name


def _output(pattern: str) -> str:
    if pattern.startswith("/") or ".." in pattern.split("/") or not _is_pattern(pattern):
        raise ValueError(f"{pattern!r} is no pattern of files below the step's own folder; write, say, model/*.json")
    return pattern


def _is_pattern(pattern: str) -> bool:
    try:
        next(Path(os.devnull).glob(pattern), None)
    except (ValueError, IndexError, AttributeError, NotImplementedError):  # as pathlib has it, of ".", "./" and so on
        return False
    return "\0" not in pattern


Name = Annotated[str, AfterValidator(_name), Field(json_schema_extra={"pattern": f"^{_NAME}$"})]
Duration = Annotated[
    float,
    BeforeValidator(_seconds),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": f"^{_DURATION}$"}, {"type": "number"}]}),
]
Reason = Annotated[
    str | int,
    BeforeValidator(_reason),
    WithJsonSchema({"anyOf": [{"enum": list(SPELLED)}, {"type": "integer", "minimum": 1, "maximum": 255}]}),
]
EnvironmentText = Annotated[str, BeforeValidator(_text), WithJsonSchema({"type": ["string", "integer"]})]

Secret = Annotated[str, AfterValidator(_secret), Field(json_schema_extra={"pattern": f"^{_SECRET}$"})]


class RetryEntry(BaseModel):
    """How often a step is tried, and why again. A number alone is `attempts`."""

    model_config = _STRICT

    attempts: Annotated[int, Field(ge=1, le=1000)]
    """How often in all."""
    on: Annotated[list[Reason], Field(min_length=1, json_schema_extra={"default": _ON})] = list(Retry.on)
    """Reasons that are worth another attempt, and exit statuses; `exit` is any of these."""
    backoff: Duration = Retry.backoff_s
    """The wait before the second attempt; it doubles with each further one."""
    max_backoff: Duration = Retry.most_s
    """The longest wait."""
    jitter: Annotated[float, Field(ge=0, le=1)] = Retry.jitter
    """The share of a wait that is left to chance."""

    def policy(self) -> Retry:
        """What the runner goes by."""
        return Retry(self.attempts, tuple(self.on), self.backoff, self.max_backoff, self.jitter)


class StepEntry(BaseModel):
    """One step of `steps` or `finally`."""

    model_config = _STRICT

    name: Name
    """What others call it; made of small letters, digits, '_' and '-'."""
    uses: str
    needs: list[str] = []
    """Steps that it waits for; what its kind takes comes from these."""
    when: Annotated[str, BeforeValidator(_condition), WithJsonSchema({"type": ["string", "boolean"]})] = ""
    """A condition without which it is left out: host.gpus >= 8 and steps.train.status == 'ok'."""
    retry: Annotated[RetryEntry, BeforeValidator(_attempts)] | None = None
    """How often it is tried, and why again."""
    timeout: Duration | None = None
    """How long one attempt may take."""
    no_output_timeout: Duration | None = None
    """How long one attempt may say nothing."""
    matrix: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    """Values by name: it becomes one step for each combination of them, read as ${{ matrix.NAME }}."""
    inputs: list[Annotated[str, Field(min_length=1)]] = []
    """Files, folders and patterns of files that it depends on, besides what its kind reads."""
    outputs: list[Annotated[str, AfterValidator(_output)]] = []
    """Patterns of files below its folder that it must have made."""
    env: dict[str, EnvironmentText] = {}
    """Variables of its process."""
    secrets: list[Secret] = []
    """Names of variables that it is given from whoever starts the run, and that are written nowhere."""
    host: str | None = None
    """Where it runs: a name of hosts.yaml or a chain. Else where the run is."""
    launcher: Annotated[Any, WithJsonSchema({"anyOf": []})] = None
    """How a training's workers are started."""
    with_: dict[str, Any] = Field(default={}, alias="with")
    """The settings of its kind."""

    def limits(self) -> Limits:
        """What the runner goes by."""
        return Limits(self.timeout, self.no_output_timeout)


class PipelineEntry(BaseModel):
    """A pipeline's file."""

    model_config = _STRICT

    name: Name
    """What its runs are called."""
    description: str = ""
    """What it is for."""
    steps: Annotated[list[StepEntry], Field(min_length=1)]
    """What is run, each after what it needs."""
    finally_: list[StepEntry] = Field(default=[], alias="finally")
    """What is run after all others, however they ended."""


@dataclass(frozen=True)
class Declared:
    """A step as it is declared, and where: ("steps", 3), or ("finally", 0)."""

    entry: StepEntry
    place: Place

    @property
    def is_last(self) -> bool:
        """Whether it is one of `finally`."""
        return self.place[0] == "finally"


def declared(entry: PipelineEntry, document: Document) -> dict[str, Declared]:
    """The steps by name, in the order of the file. Raises ConfigError."""
    steps: dict[str, Declared] = {}
    for part, entries in (("steps", entry.steps), ("finally", entry.finally_)):
        for index, each in enumerate(entries):
            place: Place = (part, index)
            if each.name in steps:
                line, _ = document.position((*steps[each.name].place, "name"))
                what = f"the name {each.name!r} is already given to a step on line {line}"
                raise document.error(what, (*place, "name"), cure="give each step a name of its own")
            _check_words(each, place, document)
            steps[each.name] = Declared(each, place)
    return steps


def _check_words(entry: StepEntry, place: Place, document: Document) -> None:
    for name in entry.env:
        where = (*place, "env", name)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            cure = "write letters, digits and '_', as in OMP_NUM_THREADS"
            raise document.error(f"{name!r} can not name a variable", where, key=True, cure=cure)
        if name in entry.secrets:
            what = f"{name} is among the secrets, too"
            raise document.error(what, where, key=True, cure="remove it from env: a secret's value is in no file")
    for name in entry.matrix:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or keyword.iskeyword(name):
            what, cure = f"{name!r} can not name a part of a matrix", "write letters, digits and '_', as in seed"
            raise document.error(what, (*place, "matrix", name), key=True, cure=cure)
