"""What is installed in a virtual environment: its distributions, what each claims, and the files on disk."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import json
import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name

Mode = Literal["full", "cached", "quick"]
"""How files are compared: hash all; hash those whose stat changed since they were hashed; sizes only."""

MEMORY = "dflash-verified.json"
_READERS = 4


@dataclass(frozen=True)
class Claim:
    """One line of a RECORD: SHA-256 (hex) and size, where it gives them."""

    sha256: str | None
    size: int | None


@dataclass(frozen=True)
class Distribution:
    """One installed distribution. `claims` and `folder` are paths relative to the environment's root."""

    name: str
    version: str
    folder: str
    claims: Mapping[str, Claim]
    record_sha256: str


@dataclass(frozen=True)
class OnDisk:
    """One file as it is. `sha256` is None when its content was not looked at."""

    size: int
    sha256: str | None


@dataclass(frozen=True)
class Snapshot:
    """An environment as read: everything `verify.judge` looks at.

    `made_with` is the SHA-256 of each RECORD when the environment was made, `stamp` what it was made from;
    both are None when `./inv` did not make it.
    """

    distributions: tuple[Distribution, ...]
    files: Mapping[str, OnDisk]
    made_with: Mapping[str, str] | None
    stamp: Mapping[str, str] | None
    mode: Mode
    hashed: int


def parse_record(text: str, site: str) -> dict[str, Claim]:
    """A RECORD's lines (path,sha256=urlsafe base64,size), with paths relative to the environment's root."""
    claims = {}
    for row in csv.reader(io.StringIO(text)):
        if len(row) != 3 or not row[0]:
            continue
        digest = None
        if row[1].startswith("sha256="):
            digest = base64.urlsafe_b64decode(row[1][7:] + "=" * (-len(row[1][7:]) % 4)).hex()
        path = posixpath.normpath(posixpath.join(site, row[0]))
        claims[path] = Claim(digest, int(row[2]) if row[2].isdigit() else None)
    return claims


def parse_metadata(text: str) -> tuple[str, str]:
    """Name and version from METADATA's head; empty where a line is missing."""
    head = text.split("\n\n", 1)[0]
    found = {key: value.strip() for key, value in re.findall(r"^(Name|Version):(.*)$", head, re.MULTILINE)}
    return found.get("Name", ""), found.get("Version", "")


def parse_stamp(text: str) -> dict[str, str]:
    """`key value` lines, as bootstrap.py writes them."""
    return {key: value for key, _, value in (line.partition(" ") for line in text.splitlines()) if key}


def site_folders(prefix: Path) -> list[str]:
    """A virtual environment's site-packages folders, relative to its root (lib64 may be a link to lib)."""
    found = {path.resolve(): path for path in sorted(prefix.glob("lib*/python3*/site-packages"), reverse=True)}
    return sorted(path.relative_to(prefix).as_posix() for path in found.values())


def read(prefix: Path, mode: Mode = "cached") -> Snapshot:
    """Read the virtual environment at `prefix`. A file that vanishes meanwhile counts as missing.

    With `cached`, what was hashed is remembered in the environment's root beside size, inode, mtime and ctime
    (which no program can set back), so an unchanged file is hashed once.
    """
    distributions: list[Distribution] = []
    stats: dict[str, os.stat_result] = {}
    for site in site_folders(prefix):
        stats.update(_walk(prefix, site))
        distributions += _distributions(prefix, site, stats)
    claims = {path: claim for each in distributions for path, claim in each.claims.items()}
    for path in claims.keys() - stats.keys():  # scripts and data outside site-packages
        with contextlib.suppress(OSError):
            stats[path] = os.stat(prefix / path)
    known = _recall(prefix) if mode == "cached" else {}
    digests: dict[str, str | None] = {}
    unknown = []
    for path, claim in claims.items():
        if claim.sha256 and path in stats and mode != "quick":
            remembered = known.get(path)
            if remembered and remembered[0] == _signature(stats[path]):
                digests[path] = remembered[1]
            else:
                unknown.append(path)
    with ThreadPoolExecutor(_READERS) as pool:  # hashing and reading both let the interpreter's lock go
        digests.update(zip(unknown, pool.map(lambda path: _digest(prefix / path), unknown), strict=True))
    if mode == "cached" and unknown:
        _remember(prefix, {path: (_signature(stats[path]), digest) for path, digest in digests.items() if digest})
    files = {path: OnDisk(stat.st_size, digests.get(path)) for path, stat in stats.items()}
    made_with = _text(prefix / "dflash-records")
    stamp = _text(prefix / "dflash-stamp")
    return Snapshot(
        distributions=tuple(distributions),
        files=files,
        made_with=None if made_with is None else _records(made_with.splitlines()),
        stamp=None if stamp is None else parse_stamp(stamp),
        mode=mode,
        hashed=len(unknown),
    )


def _walk(prefix: Path, folder: str) -> dict[str, os.stat_result]:
    found: dict[str, os.stat_result] = {}
    waiting = [folder]
    while waiting:
        inside = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(prefix / inside) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":  # bytecode comes and goes
                        waiting.append(f"{inside}/{entry.name}")
                elif not entry.name.endswith(".pyc"):
                    with contextlib.suppress(OSError):
                        found[f"{inside}/{entry.name}"] = entry.stat()
    return found


def _distributions(prefix: Path, site: str, stats: Iterable[str]) -> list[Distribution]:
    found = []
    folders = {path.rsplit("/", 1)[0] for path in stats if path.count("/") == site.count("/") + 2}
    for folder in sorted(each for each in folders if each.endswith(".dist-info")):
        name, version = parse_metadata(_text(prefix / folder / "METADATA") or "")
        if not name:  # a folder left behind: its own name tells
            name, _, version = posixpath.basename(folder).removesuffix(".dist-info").partition("-")
        record = _text(prefix / folder / "RECORD") or ""
        claims = {
            path: claim
            for path, claim in parse_record(record, site).items()
            if not path.endswith(".pyc") and "/__pycache__/" not in path
        }
        digest = hashlib.sha256(record.encode()).hexdigest()
        found.append(Distribution(canonicalize_name(name), version, folder, claims, digest))
    return found


def _records(lines: Iterable[str]) -> dict[str, str]:
    return {path: digest for digest, _, path in (line.partition("  ") for line in lines)}


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return None


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _signature(stat: os.stat_result) -> list[int]:
    return [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]


def _recall(prefix: Path) -> dict[str, tuple[list[int], str]]:
    try:
        stored = json.loads((prefix / MEMORY).read_bytes())
        return {path: (signature, digest) for path, (signature, digest) in stored.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # nothing remembered is only slower


def _remember(prefix: Path, digests: Mapping[str, tuple[list[int], str]]) -> None:
    beside = prefix / f"{MEMORY}.{os.getpid()}"
    try:
        beside.write_text(json.dumps(digests, separators=(",", ":")))
        beside.replace(prefix / MEMORY)
    except OSError:  # a read-only environment is verified all the same
        beside.unlink(missing_ok=True)
