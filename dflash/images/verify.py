"""Is an image what its build recorded, and is its environment what the lock says? Read inside it, judged here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash.environments.lock import read_lock
from dflash.environments.shadows import judge_surroundings
from dflash.environments.snapshot import Snapshot
from dflash.environments.spec import read_spec
from dflash.environments.surroundings import Surroundings
from dflash.environments.verify import judge
from dflash.errors import storage_error
from dflash.finding import Finding, worst_first
from dflash.hosts.inventory import Host
from dflash.hosts.program import archive
from dflash.images.bases import parse_pinned
from dflash.images.build import ENVIRONMENT, PROJECT
from dflash.images.container import engine_of, pull, run_inside

Files = Mapping[str, Sequence[Any]]
"""[bytes, SHA-256] of files by path; [0, what it points at] of links."""

_MODULES = [f"dflash.environments.{name}" for name in ("installed", "snapshot", "surroundings")]
AGAIN = "build it again from its commit, and take that digest: ./inv build"


def verify_image(reference: str, host: Host, project: Path, root: Path) -> list[Finding]:
    """Pull an image by its digest on `host`, read it from inside, and judge it; worst first.

    Raises:
        UsageError: `reference` is not by digest.
        ImageError, HostError: there is no engine, or the registry does not give these bytes.
    """
    repository, digest = parse_pinned(reference)
    program = archive("dflash.images.inside", _MODULES)
    with engine_of(host) as client:
        image = pull(client, repository, digest)
        labels = dict(image.labels)
        found = json.loads(run_inside(client, image, program, [ENVIRONMENT, PROJECT]))
    environment = labels.get("dflash.environment", "")
    record = recorded(root, environment, digest)
    return worst_first(
        [
            *against_record(found["files"], record),
            *_labels(labels),
            *_against_lock(found, labels, project),
        ]
    )


def recorded(root: Path, environment: str, digest: str) -> Files | None:
    """What the build wrote down of the image's files; None when it was not built below `root`."""
    path = root / "build" / environment / digest.removeprefix("sha256:") / "files.json"
    try:
        files: Files = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as failure:
        raise storage_error(failure, path) from failure
    return files


def against_record(files: Files, record: Files | None) -> Iterator[Finding]:
    """What differs between the files that are in the image and those that its build recorded."""
    if record is None:
        cure = "verify it where it was built, or copy build/ from there"
        yield Finding("warn", "build record", "not here, so only the lock is compared", cure, "no-record")
        return
    there = {path: list(each) for path, each in record.items()}
    differ = {
        "changed": [path for path in there.keys() & files.keys() if list(files[path]) != there[path]],
        "removed": list(there.keys() - files.keys()),
        "added": list(files.keys() - there.keys()),
    }
    for verb, paths in differ.items():
        if paths:
            rest = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
            what = f"{verb} since the build: {min(paths)}{rest}"
            cause = "the image's bytes have the right digest, so the engine's own store is damaged"
            cure = "remove the image from the engine and pull it again"
            yield Finding("block", "image files", what, cure, f"file-{verb}", cause)
    if not any(differ.values()):
        yield Finding("ok", "image files", f"{len(files):,} files are as the build recorded them")


def _labels(labels: Mapping[str, str]) -> Iterator[Finding]:
    commit = labels.get("org.opencontainers.image.revision", "")
    if labels.get("dflash.dirty") == "true":
        what = f"built from {commit[:12]} with changes that no commit has"
        yield Finding("warn", "commit", what, "commit them and build again", "dirty")
    elif commit:
        yield Finding("ok", "commit", commit[:12])


def _against_lock(found: Mapping[str, Any], labels: Mapping[str, str], project: Path) -> Iterator[Finding]:
    environment = labels.get("dflash.environment", "")
    folder = project / "envs" / environment
    if not environment or not (folder / "requirements.lock").is_file():
        what = f"its environment is {environment!r}, which is not in envs/" if environment else "it has no such label"
        yield Finding("block", "environment", what, "give an image that ./inv build made", "no-environment")
        return
    lock, spec = read_lock(folder / "requirements.lock"), read_spec(folder / "env.yaml")
    if labels.get("dflash.lock") != lock.id:
        what = f"built from lock {labels.get('dflash.lock', '')[:12]}; envs/{environment} has {lock.id[:12]}"
        yield Finding("block", "lock", what, AGAIN, "other-lock", "the lock was made again after the image was built")
        return
    snapshot, around = Snapshot.from_json(found["snapshot"]), Surroundings(**found["surroundings"])
    yield from judge(lock, spec, snapshot, found["markers"], AGAIN)
    yield from judge_surroundings(spec, snapshot, around)
