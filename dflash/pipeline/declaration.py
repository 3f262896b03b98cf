"""What a pipeline's file may hold: each entry by itself, and not yet against the others."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from dflash.document import Document, Place
from dflash.pipeline.policy import Limits, Retry
from dflash.validation import suggestion

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

SPELLED: Mapping[str, str] = {
    "timeout": "timeout",
    "no_output": "no_output",
    "lost_connection": "lost",
    "out_of_memory": "memory",
    "exit": "exit",
}
"""How a file spells the reasons of policy.REASONS."""

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
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
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
    if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        raise ValueError(f"{pattern!r} is no pattern of files below the step's own folder; write, say, model/*.json")
    return pattern


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
    """`retry` of a step. A number alone is `attempts`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    attempts: Annotated[int, Field(ge=1, le=1000)]
    on: Annotated[list[Reason], Field(min_length=1)] = list(Retry.on)
    backoff: Duration = Retry.backoff_s
    max_backoff: Duration = Retry.most_s
    jitter: Annotated[float, Field(ge=0, le=1)] = Retry.jitter

    def policy(self) -> Retry:
        """What the runner goes by."""
        return Retry(self.attempts, tuple(self.on), self.backoff, self.max_backoff, self.jitter)


class StepEntry(BaseModel):
    """One step of `steps` or `finally`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name
    uses: str
    needs: list[str] = []
    when: Annotated[str, BeforeValidator(_condition), WithJsonSchema({"type": ["string", "boolean"]})] = ""
    retry: Annotated[RetryEntry, BeforeValidator(_attempts)] | None = None
    timeout: Duration | None = None
    no_output_timeout: Duration | None = None
    matrix: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    inputs: list[Annotated[str, Field(min_length=1)]] = []
    outputs: list[Annotated[str, AfterValidator(_output)]] = []
    env: dict[str, EnvironmentText] = {}
    secrets: list[Secret] = []
    host: str | None = None
    launcher: Any = None
    with_: dict[str, Any] = Field(default={}, alias="with")

    def limits(self) -> Limits:
        """What the runner goes by."""
        return Limits(self.timeout, self.no_output_timeout)


class PipelineEntry(BaseModel):
    """A pipeline's file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name
    description: str = ""
    steps: Annotated[list[StepEntry], Field(min_length=1)]
    finally_: list[StepEntry] = Field(default=[], alias="finally")


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
