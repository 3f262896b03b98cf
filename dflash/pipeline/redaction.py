"""Secrets: taken from the environment of whoever starts a run, given to the steps that name them, written nowhere."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from dflash.errors import UsageError
from dflash.pipeline.schema import Step

MASK = "***"
SHORTEST = 4
"""Characters. What is shorter could not be hidden in a log without hiding much else."""

_CHUNK = 1 << 20


def secrets_of(steps: Iterable[Step], environ: Mapping[str, str]) -> dict[str, str]:
    """The values of the secrets that `steps` name. Raises UsageError for one that is not set, or is too short."""
    found = {}
    for step in steps:
        found.update(taken(step.secrets, environ, f"step {step.name}"))
    return found


def taken(names: Iterable[str], environ: Mapping[str, str], where: str | None = None) -> dict[str, str]:
    """The values of secrets by name. Raises UsageError for one that is not set, or is too short."""
    found = {}
    for name in names:
        value = found[name] = environ.get(name, "")
        if not value:
            cure = f"set it for this command: export {name}=…"
            raise UsageError(f"the secret {name} is not set", where=where, cure=cure)
        if len(value) < SHORTEST:
            what = f"the secret {name} has fewer than {SHORTEST} characters, too few to be kept out of a log"
            raise UsageError(what, where=where, cure="take a longer one")
    return found


def redaction_of(steps: Iterable[Step], environ: Mapping[str, str]) -> Redaction:
    """What hides the secrets that `steps` name, as far as they are set, and long enough: of a step that does not run
    nothing is checked, and one letter would be replaced all over what others say."""
    return Redaction(set_of((name for step in steps for name in step.secrets), environ).values())


def set_of(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The values of secrets by name, as far as they are set, and long enough."""
    values = {name: environ.get(name, "") for name in sorted({*names})}
    return {name: value for name, value in values.items() if len(value) >= SHORTEST}


class Redaction:
    """Replaces secret values by `***`: as they are, line by line, escaped, in base64 and as part of an address."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = sorted({form for value in values for form in _forms(value)}, key=lambda form: (-len(form), form))
        self._forms = tuple(forms)
        self._bytes = re.compile(b"|".join(map(re.escape, forms))) if forms else None
        self._text = re.compile("|".join(re.escape(os.fsdecode(form)) for form in forms)) if forms else None

    def __bool__(self) -> bool:
        return bool(self._forms)

    def value(self, value: Any, names: bool = True) -> Any:
        """A plain JSON value with every text in it redacted, `names` of a map too. Numbers stay."""
        if self._text is None:
            return value
        if isinstance(value, str):
            return self._text.sub(MASK, value)
        if isinstance(value, list):
            return [self.value(each, names) for each in value]
        if isinstance(value, dict):
            return {self.value(name) if names else name: self.value(each, names) for name, each in value.items()}
        return value

    def stream(self, source: int) -> Iterator[bytes]:
        """What can be read from a descriptor to its end, redacted, as soon as it can be told from a secret's beginning:
        one that comes in two pieces is found, and no more than its own length is ever held back."""
        rest = b""
        while chunk := os.read(source, _CHUNK):
            done, rest = self._split(rest + chunk)
            if done:
                yield done
        if rest:
            yield self._bytes.sub(MASK.encode(), rest) if self._bytes else rest

    def finds(self, data: bytes) -> bool:
        """Whether a secret shows in it."""
        return any(form in data for form in self._forms)

    def _split(self, data: bytes) -> tuple[bytes, bytes]:
        """`data` redacted as far as that can be decided, and the rest, which a secret may begin in."""
        if self._bytes is None:
            return data, b""
        held = self._beginning(data, 0)
        if not self.finds(data):  # nine times as fast as the pattern
            return data[:held], data[held:]
        pieces, place = [], 0
        for match in self._bytes.finditer(data):
            if match.start() >= held:
                break
            pieces += [data[place : match.start()], MASK.encode()]
            place = match.end()
            if place > held:
                held = self._beginning(data, place)
        pieces.append(data[place:held])
        return b"".join(pieces), data[held:]

    def _beginning(self, data: bytes, least: int) -> int:
        """The first place from `least` on from where all of `data` is the beginning of a longer form; its end if none
        is."""
        first = max(least, len(data) - len(self._forms[0]) + 1)
        for place in range(first, len(data)):
            tail = data[place:]
            if any(form.startswith(tail) and form != tail for form in self._forms):
                return place
        return len(data)


def telling(value: str) -> tuple[bytes, ...]:
    """The bytes that tell that a value is in a file, and not only what any file may have by chance: of several lines
    the longest, since the first of a key or a brace is anybody's. None of a short one, which may be a word."""
    longest = max(map(len, value.splitlines()), default=0)
    forms = _forms_of({value, *(line for line in value.splitlines() if len(line) == longest)})
    return tuple(sorted(form for form in forms if len(form) >= _BY_CHANCE)) if len(value) >= _BY_CHANCE else ()


_BY_CHANCE = 8  # characters; of base64, four are found once in 16 MB of it, and a lock is full of hashes


def _forms(value: str) -> set[bytes]:
    """The bytes that a value may show as."""
    return _forms_of({value, *(line for line in value.splitlines() if len(line) >= SHORTEST)})


def _forms_of(texts: set[str]) -> set[bytes]:
    raw = {os.fsencode(text) for text in texts}  # of a text that is no UTF-8, too
    escaped = {form for each in raw for form in (quote(each, safe=""), quote(each), quote_plus(each))}
    escaped |= {json.dumps(text)[1:-1] for text in texts} | {repr(text)[1:-1] for text in texts}
    escaped |= {json.dumps(text, ensure_ascii=False)[1:-1] for text in texts}
    return {os.fsencode(form) for form in texts | escaped} | {form for text in texts for form in _base64(text)}


def _base64(text: str) -> Iterator[bytes]:
    """Base64 of a text, alone and at any of three places in what is encoded, as base64 takes three bytes at once:
    without the characters that depend on what is beside it, too."""
    raw = os.fsencode(text)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(raw)
        for place in range(3):
            whole = encode(bytes(place) + raw)
            first = (0, 2, 3)[place]
            last = len(whole) - (0, 3, 2)[(place + len(raw)) % 3]
            if last - first >= SHORTEST:
                yield whole[first:last]
