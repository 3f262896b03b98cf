"""What `--set` changes of a pipeline's file, before it is checked."""

from __future__ import annotations

from typing import Any

from dflash.document import Document, Place, parse_scalar
from dflash.errors import ConfigError, UsageError
from dflash.validation import suggestion


def overridden(document: Document, override: str) -> Document:
    """The document with `step.key.sub=value`, which changes the step's `with`, or with `step:key.sub=value`, which
    changes what the step itself declares: `train:timeout=2h`. A step of a matrix is named as it is declared.

    Raises UsageError, which names the option.
    """
    origin = f"--set {override}"
    target, equals, text = override.partition("=")
    first, colon, rest = target.strip().partition(":")
    parts = [first, *rest.split(".")] if colon else first.split(".")
    if not equals or len(parts) < 2 or not all(parts):
        cure = "try --set train.steps=100, or --set train:timeout=2h"
        raise UsageError("this is not step.key=value", where=origin, cure=cure)
    places = _places(document.data)
    if parts[0] not in places:
        cure = suggestion(parts[0], places, "steps")
        raise UsageError(f"the pipeline has no step {parts[0]!r}", where=origin, cure=cure)
    try:
        value = parse_scalar(text)
    except (ConfigError, ValueError) as failure:
        what = failure.what if isinstance(failure, ConfigError) else str(failure)
        raise UsageError(f"the value can not be read: {what}", where=origin) from None
    place = places[parts[0]] if colon else (*places[parts[0]], "with")
    try:
        return document.with_value((*place, *parts[1:]), value, origin)
    except UsageError as failure:  # it names the place in the file, where a person knows the step
        what = failure.what.replace(".".join(map(str, place)), parts[0])
        raise UsageError(what, where=origin) from None


def _places(data: Any) -> dict[str, Place]:
    """Where each step is declared, by name. Nothing is known yet of what the file holds."""
    places: dict[str, Place] = {}
    for part in ("steps", "finally"):
        entries = data.get(part) if isinstance(data, dict) else None
        for index, step in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(step, dict) and isinstance(step.get("name"), str):
                places.setdefault(step["name"], (part, index))
    return places
