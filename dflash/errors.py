"""What can go wrong, as one tree a caller can read.

    DFlashError
    ├── UsageError            the command line or a declared file is wrong   (exit 2)
    │   ├── ConfigError       a YAML file: file, line, column
    │   └── ChainError        a host chain: the hop and the rule it breaks
    ├── EnvironmentMismatch   what is installed is not what the lock says    (exit 3)
    ├── DataError             training text or a JSONL line                  (exit 4)
    ├── StorageError          full disk, read-only or unreadable folder      (exit 5)
    ├── BusyError             another run holds this folder                  (exit 6)
    ├── CheckpointError       a checkpoint that can not be used              (exit 7)
    ├── CompilationError      the closed set of graphs was left              (exit 8)
    ├── OutOfMemory           a GPU has too little memory                    (exit 10)
    ├── Diverged              a replay gave other numbers, or none           (exit 11)
    └── StepFailed            a step's process ended badly                   (its own exit status)

Each says what failed, where (a file and line, or a layer), and what to do next; `str()` is one line.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import ClassVar


class DFlashError(Exception):
    """A failure a person can act on. `what` happened, `where`, and `cure`: what to do next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str | None = None, cure: str | None = None) -> None:
        super().__init__(what)
        self.what, self.where, self.cure = what, where, cure

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return " ".join(f"{line}; {self.cure}".split()) if self.cure else " ".join(line.split())


class UsageError(DFlashError):
    """The command line, or a file a person wrote, can not be followed."""

    exit_code = 2


class ConfigError(UsageError):
    """A declared file is wrong at `line` and `column` (both counted from 1; 0 means the whole file)."""

    def __init__(self, what: str, *, file: str | Path, line: int = 0, column: int = 0, cure: str | None = None) -> None:
        where = f"{file}:{line}:{column}" if line else str(file)
        super().__init__(what, where=where, cure=cure)
        self.file, self.line, self.column = str(file), line, column


class ChainError(UsageError):
    """A host chain has a hop that breaks a rule."""


class EnvironmentMismatch(DFlashError):
    """The installed environment is not the one its lock describes."""

    exit_code = 3


class DataError(DFlashError):
    """A data file, or one line of it, can not be used."""

    exit_code = 4


class StorageError(DFlashError):
    """A file could not be written or read: full disk, read-only folder, missing permission."""

    exit_code = 5


class BusyError(DFlashError):
    """Another run holds this folder."""

    exit_code = 6


class CheckpointError(DFlashError):
    """A checkpoint is damaged, or belongs to another configuration."""

    exit_code = 7


class CompilationError(DFlashError):
    """A graph outside the closed set was asked for, or the gate's rules were broken."""

    exit_code = 8


class OutOfMemory(DFlashError):
    """A GPU has too little memory for the sizes that were asked for."""

    exit_code = 10


class Diverged(DFlashError):
    """A run that was done again gave other numbers or files, or nothing that can be compared."""

    exit_code = 11


class StepFailed(DFlashError):
    """A step's process ended badly. `exit_code` is the step's own status, so a caller's is true too. `reason` is one of
    those of dflash/pipeline/policy.py, where it was told."""

    def __init__(
        self, what: str, *, status: int, where: str | None = None, cure: str | None = None, reason: str | None = None
    ) -> None:
        super().__init__(what, where=where, cure=cure)
        self.status, self.reason = status, reason


_STORAGE_CURES = {
    errno.ENOSPC: "free space on that disk, or choose another root folder with --root",
    errno.EDQUOT: "the quota is used up: free space, or choose another root folder with --root",
    errno.EROFS: "the file system is read-only: remount it, or choose another root folder with --root",
    errno.EACCES: "check the owner and mode of the folder, or choose another with --root",
    errno.EPERM: "check the owner and mode of the folder, or choose another with --root",
}


def storage_error(failure: OSError, path: str | Path | None = None) -> StorageError:
    """The one-line form of an `OSError` from reading or writing `path`."""
    what = failure.strerror or str(failure)
    where = str(path or failure.filename or "unknown file")
    cure = _STORAGE_CURES.get(failure.errno or 0, "check that the path exists and can be used")
    return StorageError(what, where=where, cure=cure)


def as_answer(failure: Exception) -> str:
    """An error as the line of JSON that a program at a far end ends with (dflash/environments/programs.py)."""
    import json  # a minimal Python has none

    if isinstance(failure, DFlashError):
        return json.dumps({"what": failure.what, "where": failure.where, "cure": failure.cure})
    return json.dumps({"what": f"{type(failure).__name__}: {failure}", "where": None, "cure": None})
