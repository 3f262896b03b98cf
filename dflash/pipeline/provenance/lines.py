"""Which line of a text was changed, told without keeping the text: a checksum of each line, beside a run's record."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from dflash.atomic import write_json
from dflash.pipeline.belongings import belongings_of, files_named
from dflash.pipeline.schema import Pipeline

FILE = "lines.json"
Lines = Mapping[str, Mapping[str, Sequence[int]]]
"""By step and file, as in the part `data`: the checksum of each line."""

_MOST_BYTES, _MOST_LINES = 16_000_000, 20_000
"""Of a larger file it is told that it changed, but not where."""


def lines(pipeline: Pipeline) -> dict[str, dict[str, list[int]]]:
    """The checksums of every text that the steps read here, as far as it is not too long. Raises OSError."""
    found: dict[str, dict[str, list[int]]] = {}
    for step in pipeline.steps:
        for belonging in belongings_of(step):
            for name, path in files_named(belonging.name)[0].items():
                if path.stat().st_size <= _MOST_BYTES and (sums := _checksums(path.read_bytes())):
                    found.setdefault(step.name, {})[name] = sums
    return found


def _checksums(content: bytes) -> list[int]:
    if b"\0" in content or content.count(b"\n") > _MOST_LINES:
        return []
    return [zlib.crc32(line) for line in content.splitlines()]


def keep(pipeline: Pipeline, folder: Path) -> None:
    """Write them into a run's folder. Raises OSError."""
    write_json(folder / FILE, lines(pipeline))


def kept(folder: Path) -> Lines:
    """What is in a run's folder; nothing where there is none, or it is damaged."""
    try:
        found = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def first_other(old: Lines, new: Lines, step: str, name: str) -> int | None:
    """The first line, from 1, that is another, or is on one side alone; None where that can not be told."""
    before, after = old.get(step, {}).get(name), new.get(step, {}).get(name)
    if before and after:
        for number, (one, other) in enumerate(zip_longest(before, after), 1):
            if one != other:
                return number
    return None
