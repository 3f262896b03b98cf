"""What is installed in an environment: its distributions, what each claims, and the files on disk.

Sent to the far end of a chain, where it runs as a program: standard library, Python 3.8+. It imports nothing of what
it reads.
"""

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
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dflash.environments.snapshot import Claim, Distribution, Mode, OnDisk, Record, Snapshot, packed, unpacked

RECORD = "dflash-record.json"
"""Every file of a generation, written last of all when it was made: a generation without it is half-made."""
MEMORY = "dflash-verified.json"
PIECE = 1 << 20
OURS = frozenset({RECORD, MEMORY, "dflash-stamp", "dflash-records", ".lock", ".gitignore", "CACHEDIR.TAG"})


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
    found = {key: value.strip() for key, value in re.findall(r"^(Name|Version):(.*)$", _head(text), re.MULTILINE)}
    return found.get("Name", ""), found.get("Version", "")


def parse_requires(text: str) -> tuple[str, ...]:
    """The requirements of a METADATA."""
    return tuple(each.strip() for each in re.findall(r"^Requires-Dist:(.*)$", _head(text), re.MULTILINE))


def _head(metadata: str) -> str:
    return metadata.split("\n\n", 1)[0]


def parse_settings(text: str) -> dict[str, str]:
    """pyvenv.cfg: `key = value` lines."""
    return {
        key.strip(): value.strip()
        for key, equals, value in (line.partition("=") for line in text.splitlines())
        if equals
    }


def parse_stamp(text: str) -> dict[str, str]:
    """`key value` lines, as bootstrap.py writes them."""
    return {key: value for key, _, value in (line.partition(" ") for line in text.splitlines()) if key}


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def site_folders(prefix: Path) -> list[str]:
    """A virtual environment's site-packages folders, relative to its root (lib64 may be a link to lib)."""
    found = {path.resolve(): path for path in sorted(prefix.glob("lib*/python3*/site-packages"), reverse=True)}
    return sorted(path.relative_to(prefix).as_posix() for path in found.values())


def read(prefix: Path, mode: Mode = "cached") -> Snapshot:
    """Read the environment at `prefix`. A file that vanishes meanwhile counts as missing.

    With `cached`, what was hashed is remembered in the environment's root beside size, inode, mtime and ctime
    (which no program can set back), so an unchanged file is hashed once.
    """
    record = read_record(prefix)
    distributions, stats = _listed(prefix, everything=record is not None)
    wanted = {path for each in distributions for path, claim in each.claims.items() if claim.sha256}
    wanted |= set(record.files) if record else set()
    known = _recall(prefix) if mode == "cached" else {}
    digests: dict[str, str | None] = {}
    unknown = []
    for path in wanted & stats.keys() if mode != "quick" else ():
        remembered = known.get(path)
        if remembered and remembered[0] == _signature(stats[path]):
            digests[path] = remembered[1]
        else:
            unknown.append(path)
    if mode == "quick" and record:  # RECORDs are few, and say what the rest should be
        unknown = [path for path in record.files if path.endswith(".dist-info/RECORD") and path in stats]
    # The largest first, so that no thread begins a gigabyte when the others are done. Hashing and reading both let the
    # interpreter's lock go.
    unknown.sort(key=lambda path: -stats[path].st_size)
    with ThreadPoolExecutor(os.cpu_count() or 4) as pool:
        digests.update(zip(unknown, pool.map(lambda path: _digest(prefix / path, stats[path]), unknown)))  # noqa: B905 - not in 3.8
    if mode == "cached" and unknown:
        _remember(prefix, {path: (_signature(stats[path]), digest) for path, digest in digests.items() if digest})
    made_with, stamp = _text(prefix / "dflash-records"), _text(prefix / "dflash-stamp")
    return Snapshot(
        distributions=tuple(distributions),
        files={path: OnDisk(each.st_size, digests.get(path), each.st_mtime_ns) for path, each in stats.items()},
        made_with=None if made_with is None else _records(made_with.splitlines()),
        stamp=None if stamp is None else parse_stamp(stamp),
        mode=mode,
        hashed=len(unknown),
        hashed_bytes=sum(stats[path].st_size for path in unknown),
        record=record,
        settings=parse_settings(_text(prefix / "pyvenv.cfg") or ""),
    )


def write_record(prefix: Path, lock: str, python: str, now: float) -> None:
    """Write down what has just been made at `prefix`, from what the wheels claim; only what none claims is hashed."""
    distributions, stats = _listed(prefix, everything=True)
    claimed = {path: claim.sha256 for each in distributions for path, claim in each.claims.items() if claim.sha256}
    owners = Counter(path for each in distributions for path in each.claims)
    files = {}
    for path, each in stats.items():
        digest = claimed.get(path) if owners[path] == 1 else None
        files[path] = OnDisk(each.st_size, digest or _digest(prefix / path, each), each.st_mtime_ns)
    plain = {"lock": lock, "python": python, "made": now, "files": packed(files)}
    draft = prefix / (RECORD + ".new")
    with draft.open("w") as file:
        json.dump(plain, file, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(prefix / RECORD)


def read_record(prefix: Path) -> Record | None:
    """What was written down when the environment at `prefix` was made; None when it was not, or was damaged since."""
    try:
        plain = json.loads((prefix / RECORD).read_bytes())
        return Record(plain["lock"], plain["python"], plain["made"], unpacked(plain["files"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _listed(prefix: Path, *, everything: bool) -> tuple[list[Distribution], dict[str, os.stat_result]]:
    """The distributions, and the stat of every file that is looked at."""
    distributions: list[Distribution] = []
    stats: dict[str, os.stat_result] = _walk(prefix, "") if everything else {}
    for site in site_folders(prefix):
        if not everything:
            stats.update(_walk(prefix, site))
        distributions += _distributions(prefix, site, stats)
    for each in distributions:
        for path in each.claims.keys() - stats.keys():  # scripts and data outside site-packages
            with contextlib.suppress(OSError):
                stats[path] = os.lstat(prefix / path)
    return distributions, stats


def _walk(prefix: Path, folder: str) -> dict[str, os.stat_result]:
    """Everything but folders and bytecode that Python keeps for itself. A link is a file of its own, not what it leads
    to: a folder that is one would bring in what nobody recorded."""
    found: dict[str, os.stat_result] = {}
    waiting = [folder]
    while waiting:
        inside = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(prefix / inside) as entries:
            for entry in entries:
                path = f"{inside}/{entry.name}" if inside else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        waiting.append(path)
                elif path not in OURS:
                    with contextlib.suppress(OSError):
                        found[path] = entry.stat(follow_symlinks=False)
    return found


def _distributions(prefix: Path, site: str, stats: Iterable[str]) -> list[Distribution]:
    found = []
    inside = (path for path in stats if path.startswith(site + "/"))
    folders = {path.rsplit("/", 1)[0] for path in inside if path.count("/") == site.count("/") + 2}
    for folder in sorted(each for each in folders if each.endswith(".dist-info")):
        metadata = _text(prefix / folder / "METADATA") or ""
        name, version = parse_metadata(metadata)
        if not name:  # a folder left behind: its own name tells
            name, _, version = posixpath.basename(folder)[: -len(".dist-info")].partition("-")
        record = _text(prefix / folder / "RECORD") or ""
        claims = {path: claim for path, claim in parse_record(record, site).items() if "/__pycache__/" not in path}
        digest = hashlib.sha256(record.encode()).hexdigest()
        found.append(Distribution(normalised(name), version, folder, claims, digest, parse_requires(metadata)))
    return found


def _records(lines: Iterable[str]) -> dict[str, str]:
    return {path: digest for digest, _, path in (line.partition("  ") for line in lines)}


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return None


def _digest(path: Path, status: os.stat_result) -> str | None:
    """Of a file, its content; of a link, where it leads; None for what can not be read."""
    try:
        if stat.S_ISLNK(status.st_mode):
            return hashlib.sha256(b"link to " + os.fsencode(os.readlink(str(path)))).hexdigest()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
            return None
        with path.open("rb", buffering=0) as file:
            if status.st_size <= PIECE:
                return hashlib.sha256(file.readall()).hexdigest()
            state = hashlib.sha256()
            while True:
                piece = file.read(PIECE)
                if not piece:
                    return state.hexdigest()
                state.update(piece)
    except OSError:
        return None


def _signature(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def _memory(prefix: Path) -> Path:
    """Beside a generation, in which nothing is ever changed; in `.venv` itself."""
    if (prefix / RECORD).exists():
        return prefix.with_name(f".{prefix.name}-verified.json")
    return prefix / MEMORY


def _recall(prefix: Path) -> dict[str, tuple[list[int], str]]:
    try:
        stored = json.loads(_memory(prefix).read_bytes())
        return {path: (signature, digest) for path, (signature, digest) in stored.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # nothing remembered is only slower


def _remember(prefix: Path, digests: Mapping[str, tuple[list[int], str]]) -> None:
    place = _memory(prefix)
    beside = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(digests, separators=(",", ":")))
        beside.replace(place)
    except OSError:  # a read-only environment is verified all the same
        with contextlib.suppress(OSError):
            beside.unlink()
