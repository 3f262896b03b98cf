"""What a cache folder is valid for, as a small file beside it: by that `./inv cache.save` knows what to keep it as.

FOLDER/inductor            the cache, which pre-warm filled and proved
FOLDER/inductor.key.json   {"key": {ingredient: value, ...}, "graphs": how many the proof found}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash.atomic import write_json
from dflash.errors import UsageError


@dataclass(frozen=True)
class CacheKey:
    """The vault's key of a cache, and how many graphs the proof found in it."""

    key: dict[str, str]
    graphs: int


def key_file(cache: Path) -> Path:
    """Where the key of `cache` is. Not in it: what is in a cache is kept and restored."""
    return cache.with_name(f"{cache.name}.key.json")


def write_key(cache: Path, key: Mapping[str, str], graphs: int) -> None:
    """Write down what `cache` is valid for, once that is proved. Raises OSError."""
    write_json(key_file(cache), {"key": dict(key), "graphs": graphs})


def revoke_key(cache: Path) -> None:
    """Take back that `cache` was proved: something was compiled into it since. Raises OSError."""
    key_file(cache).unlink(missing_ok=True)


def read_key(cache: Path) -> CacheKey:
    """What was written down for `cache`. Raises UsageError when nothing was, or it can not be read."""
    cure = "run ./inv prewarm, which compiles, proves and keeps one"
    try:
        plain = json.loads(key_file(cache).read_bytes())
        found = CacheKey({str(name): str(value) for name, value in plain["key"].items()}, int(plain["graphs"]))
    except FileNotFoundError:
        what = "nobody knows what this compile cache is valid for, so it can not be kept"
        raise UsageError(what, where=str(cache), cure=cure) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
        raise UsageError(f"this can not be read ({failure})", where=str(key_file(cache)), cure=cure) from failure
    if not found.key:
        raise UsageError("it names no ingredient", where=str(key_file(cache)), cure=cure)
    return found
