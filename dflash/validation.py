"""Checks a document's data against types, and turns what pydantic finds into one error with its place.

The types are pydantic models, or standard-library dataclasses (nested ones too): a room declares its
configuration without importing pydantic. Checking is strict: `"5"` is not a number, and a key that no field
has is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from dflash.document import Document, Place
from dflash.errors import UsageError

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


AS_WRITTEN: Any = object()


def validated(kind: Any, document: Document, path: Place = (), value: Any = AS_WRITTEN) -> Any:
    """The document's value at `path` as an instance of `kind`; or `value`, which was made of the one that is there.

    Raises ConfigError, or UsageError for a value that an option set.
    """
    if value is AS_WRITTEN:
        value = document.data
        for part in path:
            value = value[part]
    try:
        return instance(kind, value)
    except ValidationError as failure:
        raise _first_error(kind, failure, document, path) from None


def instance(kind: Any, data: Any) -> Any:
    """`data` (plain JSON values) as an instance of `kind`. Raises pydantic.ValidationError."""
    # JSON is the strict mode in which a list may become a tuple and text a Path.
    return _adapter(kind).validate_json(json.dumps([data]))[0]


def plain(kind: Any, value: Any) -> Any:
    """The inverse of `instance`: plain JSON values."""
    return _adapter(kind).dump_python([value], mode="json")[0]


def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of `kind`, by the names that a file has."""
    schema = _adapter(kind).json_schema(by_alias=True, mode="validation")
    found: dict[str, Any] = schema["items"]
    known: dict[str, Any] = schema.get("$defs", {})
    if "$ref" in found:
        found = known.pop(found["$ref"].rpartition("/")[2])
    return {**found, "$defs": known} if known else found


def suggestion(word: str, known: Iterable[str], noun: str) -> str:
    """What to do about an unknown `word`: the nearest known ones, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known {noun}: {', '.join(names)}" if names else f"there are no {noun} here"


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    # A plain dataclass takes the configuration of what holds it; a list is the lightest holder.
    return TypeAdapter(list[kind], config=_STRICT)


def _first_error(kind: Any, failure: ValidationError, document: Document, base: Place) -> UsageError:
    found: list[tuple[tuple[bool, int, int], UsageError]] = []
    for each in failure.errors(include_url=False):
        local = tuple(each["loc"][1:])
        path, input_ = (*base, *local), each["input"]
        if each["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            name = str(local[-1])
            cure = suggestion(name, _known_keys(kind, local[:-1]), "keys")
            error = document.error(f"unknown key {name!r}", path, key=True, cure=cure)
        elif each["type"] == "missing":
            error = document.error(f"the key {str(local[-1])!r} is missing", path, cure=f"add {local[-1]}:")
        elif each["type"] == "value_error":
            what = str(each["ctx"]["error"])
            key = what.partition(" ")[0]  # a rule of a map begins with the key that breaks it
            path = (*path, key) if isinstance(input_, dict) and key in input_ else path
            error = document.error(what, path)
        else:
            todo = _cure(each["type"], input_, each.get("ctx", {}), _known_keys(kind, local))
            error = document.error(_said(each["type"], each["msg"], input_), path, cure=todo)
        # A key that is mistyped is also missing: the mistake is the thing to name.
        found.append(((each["type"] == "missing", *document.position(path, key=True)), error))
    return min(found, key=lambda item: item[0])[1]


def _said(type_: str, message: str, value: Any) -> str:
    """What pydantic found, in the words of the file."""
    if type_ == "too_short":
        return "should have at least 1 item, and has none"
    message = message.replace("Input should be", "must be")
    message = message.replace("a valid array", "a list").replace("an object", "a map")
    message = "must be a map" if type_ in ("dataclass_type", "model_type") else message
    shown = "a map" if isinstance(value, dict) else "a list" if isinstance(value, list) else _shown(value)
    return f"{message[:1].lower()}{message[1:]}, not {shown}"


def _cure(type_: str, value: Any, rule: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    """What to do about a value that is not what it must be; `keys` are those that a map there may have."""
    is_scalar = not isinstance(value, dict | list)
    match type_:
        case "too_short":
            return "give it one"
        case "list_type" | "tuple_type" if is_scalar and value is not None:
            return f"put it in brackets: [{value if isinstance(value, str) else _shown(value)}]"
        case "list_type" | "tuple_type":
            return "write its items in brackets: [a, b]"
        case "dict_type" | "model_type" | "dataclass_type":
            return f"its keys are {', '.join(keys)}" if keys else "write key: value"
        case "string_type" if is_scalar and value is not None:
            return f'put it in quotes: "{_shown(value)}"'
        case "int_type" | "float_type" | "bool_type" if isinstance(value, str):
            return "true or false is written without quotes" if type_ == "bool_type" else "a number has no quotes"
        case "string_too_short":
            return "write one, or remove it"
        case "greater_than_equal" | "less_than_equal":
            return f"write {rule['ge']:g} or more" if "ge" in rule else f"write {rule['le']:g} or less"
    return None


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def _known_keys(kind: Any, path: Sequence[str | int]) -> list[str]:
    """The keys that the map at `path` within `kind` may have; empty when the type does not tell."""
    for option in _options(kind):
        if not path:
            if isinstance(option, type) and issubclass(option, BaseModel):
                return [each.alias or name for name, each in option.model_fields.items()]
            if dataclasses.is_dataclass(option):
                return [each.name for each in dataclasses.fields(option)]
            continue
        inner = _inner(option, path[0])
        if inner is not None and (keys := _known_keys(inner, path[1:])):
            return keys
    return []


def _options(kind: Any) -> tuple[Any, ...]:
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _options(typing.get_args(kind)[0])
    if origin in (typing.Union, types.UnionType):
        return tuple(each for arg in typing.get_args(kind) for each in _options(arg))
    return (kind,)


def _inner(kind: Any, part: str | int) -> Any:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, each in kind.model_fields.items():
            if part in (name, each.alias):
                return each.annotation
        return None
    if dataclasses.is_dataclass(kind):
        return typing.get_type_hints(kind).get(str(part))
    arguments = [each for each in typing.get_args(kind) if each is not Ellipsis]
    if typing.get_origin(kind) is dict or isinstance(part, int):
        return arguments[-1] if arguments else None
    return None
