"""A step's process, forked for the runner (dflash/pipeline/forking.py) with the path of the step's spec.

Two processes, split before anything heavy is imported. The keeper (keeper.py) has no work but to leave nothing behind.
The step does the work. It speaks to the runner through the keeper's old standard output, one JSON event a line
(stream.py); whatever else is printed goes to standard error, which is the step's log.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dflash.pipeline.keeper import keep
from dflash.pipeline.provenance.observing import Observing
from dflash.pipeline.stream import Stream

if TYPE_CHECKING:
    from dflash.hosts.inventory import Host

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(spec: Path) -> None:
    """Split into keeper and step. Never returns."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the step orphans becomes the keeper's child, and is found
    keeper = os.getpid()
    step = os.fork()
    if step:
        keep(step)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(137)
    status = _run_step(spec)
    # The outcome is told. Threads that a library has left running must neither delay the end nor crash it.
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
        sys.stdout.flush()
    os._exit(status)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _run_step(spec_file: Path) -> int:
    """Run the step and report its outcome; the exit status is that of the error, if any."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    stream = Stream(os.dup(1))  # a new descriptor is not inherited by programs that the step starts
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, lambda number, frame: None)  # not SIG_IGN, which its programs would inherit
    signal.signal(signal.SIGTERM, _interrupt)
    log, out = spec_file.name, Path(spec_file.parent)
    try:
        spec = json.loads(spec_file.read_bytes())
        log, out = spec["log"], Path(spec["out"])
        with Observing(spec.get("secrets", ())) as observing:
            result = _result(spec, stream)
            if not _host(spec):  # else the step's own process there has told
                _tell_observed(observing, spec, stream)
        stream.send("result", result=result)
        return 0
    except KeyboardInterrupt:
        return 128 + signal.SIGTERM
    except BaseException as failure:
        return _report(failure, stream, log, out)


def _tell_observed(observing: Observing, spec: Mapping[str, Any], stream: Stream) -> None:
    """What this process has become is worth knowing; not being told it is no reason to lose what it has made."""
    try:
        observed = observing.observed(Path(spec["root"]))
        launcher = spec["launcher"] or {}
        if launcher.get("kind") == "slurm" or launcher.get("hosts"):
            # Its workers are no children of this process, which is not what has trained: they get its variables alone.
            observed |= {"libraries": {}, "torch": {}, "flags": {}}
        stream.send("observed", observed=observed)
    except Exception:
        traceback.print_exc()


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing may disturb the checkpoint that is saved now
    raise KeyboardInterrupt


def _host(spec: Mapping[str, Any]) -> Host | None:
    """The host that the step runs on, where that is another than the run's."""
    from dflash.pipeline import machines

    host = machines.from_json(spec["hosts"])[spec["host"]] if spec["host"] else None
    return host if host and not machines.is_here(host, Path(spec["root"])) else None


def _result(spec: Mapping[str, Any], stream: Stream) -> dict[str, Any]:
    from dflash.pipeline import machines
    from dflash.pipeline.kinds import StepInputs, load_kinds
    from dflash.pipeline.launchers import config as launchers
    from dflash.validation import instance

    kinds = load_kinds(spec["kinds"])
    kind, lent, hosts = kinds[spec["kind"]], spec["borrowed"], machines.from_json(spec["hosts"])
    if host := _host(spec):
        from dflash.pipeline.elsewhere import run_elsewhere

        return run_elsewhere(spec, host, kind, stream)
    if Path(spec["out"], "scratch", "elsewhere.json").exists():  # of an attempt before, which was elsewhere
        from dflash.pipeline.homecoming import settle

        settle(Path(spec["out"]), None, stream)
    return kind.run(
        StepInputs(
            config=instance(kind.config, spec["config"]),
            inputs={name: Path(place) for name, place in spec["inputs"].items()},
            results=spec["results"],
            out=Path(spec["out"]),
            root=Path(spec["root"]),
            progress=stream,
            borrowed=instance(kinds[lent["kind"]].config, lent["config"]) if lent else None,
            launcher=launchers.from_json(spec["launcher"]),
            hosts=hosts,
            layout=tuple(spec["layout"]),
            log=Path(spec["log"]),
            env=spec["env"],
            project=Path(spec["project"]) if spec.get("project") else None,
        )
    )


def _report(failure: BaseException, stream: Stream, log: str, out: Path) -> int:
    """Send an error's one line; the traceback is for the log."""
    from dflash.errors import DataError, DFlashError, EnvironmentMismatch, StorageError, UsageError, storage_error

    told = isinstance(failure, DataError | EnvironmentMismatch | StorageError | UsageError)
    if isinstance(failure, OSError) and failure.errno is not None:
        error: DFlashError = storage_error(failure, failure.filename or out)
    elif not told and (refused := _disk_refused(failure, out)):
        error = storage_error(OSError(refused, os.strerror(refused)), out)
    elif isinstance(failure, DFlashError):
        error = failure
    elif isinstance(failure, MemoryError):
        error = DFlashError("memory ran out", cure="free memory, or make the step smaller in the pipeline")
    else:
        error = DFlashError(f"{type(failure).__name__}: {failure}", cure=f"the traceback is in {log}")
    status = getattr(error, "status", None) or error.exit_code
    with contextlib.suppress(OSError):  # the disk that holds the log may be the one that is full
        traceback.print_exception(failure)
    with contextlib.suppress(OSError):
        told_why = {"exit_code": status, "reason": _reason(failure)}
        stream.send("error", what=error.what, where=error.where, cure=error.cure, **told_why)
    return int(status)


def _reason(failure: BaseException) -> str:
    """Which of policy.REASONS it was. torch, whose own error has no memory in its tree, must not be imported here."""
    from dflash.errors import OutOfMemory, StepFailed
    from dflash.hosts.failures import LostConnection, Unreachable

    if isinstance(failure, StepFailed) and failure.reason:
        return failure.reason

    if isinstance(failure, MemoryError | OutOfMemory) or type(failure).__name__ == "OutOfMemoryError":
        return "memory"
    return "lost" if isinstance(failure, LostConnection | Unreachable) else "exit"


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_FULL = 256 * 1024  # bytes


def _disk_refused(failure: BaseException, out: Path) -> int | None:
    """The error number of a disk that is the reason behind another library's or process's failure, if one is.

    Rust libraries have it in the text of an exception of their own, compilers in the output of their processes.
    """
    cause: BaseException | None = failure
    while cause is not None:
        told = re.search(r"\(os error (\d+)\)", str(cause))
        number = cause.errno if isinstance(cause, OSError) else int(told[1]) if told else None
        if number in _NO_ROOM:
            return number
        cause = cause.__cause__ or cause.__context__
    with contextlib.suppress(OSError):
        disk = os.statvfs(out)
        if disk.f_bavail * disk.f_frsize < _FULL:
            return errno.ENOSPC
    return None
