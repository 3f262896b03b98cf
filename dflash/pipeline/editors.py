"""The JSON Schema of a pipeline's file, by which editors complete and check what one writes.

    python -m dflash.pipeline.editors       writes pipelines/schema.json anew, after a change of what a file may hold

It is made from the same types that the file is checked with. Needs, conditions and matrices are beyond a JSON Schema:
`./inv plan` checks those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dflash.pipeline.declaration import PipelineEntry
from dflash.pipeline.files import write_text
from dflash.pipeline.keys import HOME
from dflash.pipeline.kinds import StepKind, load_kinds
from dflash.pipeline.launchers.config import LAUNCHERS
from dflash.validation import json_schema

FILE = HOME / "pipelines" / "schema.json"
_REFERENCE = {"$ref": "#/$defs/reference"}


def published(kinds: Mapping[str, StepKind]) -> dict[str, Any]:
    """The schema, with the config of each kind under `with`."""
    whole = _plainer(json_schema(PipelineEntry))
    known = whole["$defs"]
    known["reference"] = {"type": "string", "pattern": r"\$\{\{ *matrix\.[A-Za-z_][A-Za-z0-9_]* *\}\}"}
    step = known["StepEntry"]
    step["properties"]["uses"] = {
        "description": "The kind of the step.",
        "anyOf": [{"const": kind.name, "description": kind.describes} for kind in kinds.values()],
    }
    step["properties"]["retry"]["anyOf"].append({"type": "integer", "minimum": 1})
    step["properties"]["launcher"]["anyOf"] = [{"enum": list(LAUNCHERS)}, *_launchers(known)]
    step["allOf"] = [_of_kind(kind, known) for kind in kinds.values()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A pipeline of dflash",
        **whole,
    }


def text_of(kinds: Mapping[str, StepKind]) -> str:
    """The schema as its file has it."""
    return json.dumps(published(kinds), indent=2, ensure_ascii=False) + "\n"


def _of_kind(kind: StepKind, known: dict[str, Any]) -> dict[str, Any]:
    """What a step must be if it is of this kind."""
    config = _inlined(kind.config, known)
    then: dict[str, Any] = {"properties": {"with": config}}
    if config.get("required"):
        then["required"] = ["with"]
    if not kind.launches:
        then["properties"]["launcher"] = False
    return {"if": {"properties": {"uses": {"const": kind.name}}, "required": ["uses"]}, "then": then}


def _launchers(known: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name, config in LAUNCHERS.items():
        launcher = _inlined(config, known)
        launcher["properties"] = {"kind": {"const": name}, **launcher.get("properties", {})}
        found.append(launcher | {"required": ["kind"]})
    return found


def _inlined(config: type, known: dict[str, Any]) -> dict[str, Any]:
    """A config's schema, in which a matrix's value may stand for any other; what it refers to becomes `known`."""
    schema: dict[str, Any] = _plainer(json_schema(config))
    for name, each in schema.pop("$defs", {}).items():
        known[name] = _with_references(each)
    return _with_references(schema)


def _with_references(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a map, with a reference as another choice for each of its values."""
    if "properties" not in schema:
        return schema
    values = {name: {"anyOf": [_items(each), _REFERENCE]} for name, each in schema["properties"].items()}
    return {**schema, "properties": values, "additionalProperties": False}


def _items(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema.get("items"), dict):
        return {**schema, "items": {"anyOf": [schema["items"], _REFERENCE]}}
    return schema


def _plainer(schema: Any) -> Any:
    """Without the titles that are made of names."""
    if isinstance(schema, list):
        return [_plainer(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _plainer(each) for name, each in schema.items() if name != "title" or not isinstance(each, str)}


if __name__ == "__main__":
    write_text(FILE, text_of(load_kinds()))
