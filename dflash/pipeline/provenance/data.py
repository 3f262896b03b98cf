"""The files that a run's steps read, each by its content."""

from __future__ import annotations

from collections.abc import Iterator

from dflash.errors import storage_error
from dflash.pipeline.belongings import Belonging, belongings_of, files_named
from dflash.pipeline.plan import Plan, PlannedStep
from dflash.pipeline.provenance.hashes import Hashes


def data(plan: Plan, hashes: Hashes) -> dict[str, dict[str, str]]:
    """By step, the SHA-256 of every file that it reads from outside the pipeline, by its name from beside what the
    setting names: the same wherever that lies. Weights too, which a plan tells apart by their size alone.

    Raises StorageError.
    """
    try:
        found = {each.step.name: dict(_files(each, hashes)) for each in plan.steps}
    except OSError as failure:
        raise storage_error(failure) from failure
    return {name: files for name, files in found.items() if files}


def _files(planned: PlannedStep, hashes: Hashes) -> Iterator[tuple[str, str]]:
    step = planned.step
    if step.kind.paths:  # what else it reads has no path, such as this Python's own sources
        names = planned.fields.get("fingerprint", {})
        yield from ((name, digest) for name, digest in names.items() if "/" not in name and "bytes" not in digest)
    for belonging in belongings_of(step):
        yield from hashed(belonging, hashes)
    yield from planned.fields.get("files", {}).items()


def hashed(belonging: Belonging, hashes: Hashes) -> Iterator[tuple[str, str]]:
    """Each file that a setting names here, by its name from beside that, and its SHA-256. Raises OSError."""
    files, _ = files_named(belonging.name)
    for name, path in sorted(files.items()):
        yield name, hashes.of(path)
