"""`requirements.lock`: which files an environment is made of. Parsed, never resolved."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from dflash.errors import ConfigError, storage_error

MADE_FROM = "# made from "
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_CURE = "make the lock again: ./inv env.lock NAME"


@dataclass(frozen=True)
class Locked:
    """One pinned distribution: its normalised name, exact version, marker and its files' SHA-256 (hex)."""

    name: str
    version: str
    requirement: Requirement
    hashes: frozenset[str]
    line: int

    def applies(self, environment: Mapping[str, str]) -> bool:
        marker = self.requirement.marker
        return marker is None or marker.evaluate(dict(environment))


@dataclass(frozen=True)
class Lock:
    """A whole lock. `id` is the SHA-256 of its text: environments with one id are made of the same files.

    `made_from` is what its header says it was resolved from, by name.
    """

    id: str
    entries: tuple[Locked, ...]
    made_from: Mapping[str, str] = field(default_factory=dict)

    def here(self, environment: Mapping[str, str] | None = None) -> dict[str, Locked]:
        """What should be installed under these PEP 508 variables (default: this interpreter's), by name."""
        variables = environment or {key: str(value) for key, value in default_environment().items()}
        return {each.name: each for each in self.entries if each.applies(variables)}


def lock_id(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def read_lock(path: str | Path) -> Lock:
    """Read a lock file. Raises ConfigError (with the line) or StorageError."""
    try:
        raw = Path(path).read_bytes()
    except OSError as failure:
        raise storage_error(failure, path) from failure
    return parse_lock(raw, path)


def parse_lock(raw: bytes, file: str | Path) -> Lock:
    """Parse a lock's bytes; `file` is only named in errors.

    Every entry must be pinned with `==` and carry a SHA-256; options such as an index address are refused, as
    the lock has to install from any index. Raises ConfigError.
    """
    try:
        lines = raw.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ConfigError("not UTF-8", file=file, cure=_CURE) from None
    entries: list[Locked] = []
    made_from: dict[str, str] = {}
    at = 0
    while at < len(lines):
        start = at
        text = lines[at]
        while lines[at].endswith("\\") and at + 1 < len(lines):
            at += 1
            text = text[:-1] + lines[at]
        at += 1
        if text.startswith(MADE_FROM):
            name, _, value = text.removeprefix(MADE_FROM).partition(": ")
            made_from[name] = value
        if text.strip() and not text.lstrip().startswith("#"):
            entries.append(_entry(text, file, start + 1))
    if not entries:
        raise ConfigError("no package is locked in it", file=file, cure=_CURE)
    return Lock(lock_id(raw), tuple(entries), made_from)


def _entry(text: str, file: str | Path, line: int) -> Locked:
    def wrong(what: str) -> ConfigError:
        return ConfigError(what, file=file, line=line, column=1, cure=_CURE)

    pin = text.split("--hash", 1)[0].strip()
    if pin.startswith("-"):
        raise wrong(f"the option {pin.split()[0]!r} has no place in a lock")
    try:
        requirement = Requirement(pin)
    except InvalidRequirement:
        raise wrong(f"{pin[:60]!r} is not a requirement") from None
    pinned = [each.version for each in requirement.specifier if each.operator == "=="]
    if len(requirement.specifier) != 1 or not pinned or "*" in pinned[0]:
        raise wrong(f"{requirement.name} is not pinned to one version")
    hashes = frozenset(_HASH.findall(text))
    if not hashes:
        raise wrong(f"{requirement.name} has no sha256 hash")
    return Locked(canonicalize_name(requirement.name), pinned[0], requirement, hashes, line)
