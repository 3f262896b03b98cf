"""A step's process, forked for the runner (dflash/pipeline/forking.py) with the path of the step's spec.

Two processes, split before anything heavy is imported. The keeper has no work but to leave nothing behind:
it holds the runner's end of a pipe (its standard input), and when that closes (the runner was killed) or when
the step ends it kills whatever the step started, detached processes included. The step does the work. It
speaks to the runner through the keeper's old standard output, one JSON event a line; whatever else is printed
goes to standard error, which is the step's log.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import json
import math
import os
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dflash.pipeline.provenance.observing import Observing

if TYPE_CHECKING:
    from dflash.hosts.inventory import Host

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(spec: Path) -> None:
    """Split into keeper and step. Never returns."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the step orphans becomes the keeper's child, and is found
    keeper = os.getpid()
    step = os.fork()
    if step:
        _keep(step)
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


# --- the keeper


def _keep(step: int) -> None:
    """Wait for the step or for the runner's death, leave no process behind, and end as the step did."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: _signal(step, number))
    os.close(1)  # so that the event stream ends with the step
    status = None
    while status is None:
        ready, _, _ = select.select([0, read], [], [])
        if 0 in ready:
            _kill_all()
            os._exit(137)
        os.read(read, 4096)
        status = _reap(step)
    _kill_all()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _reap(step: int) -> int | None:
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid == step:
                found = status
    return found


def _kill_all() -> None:
    # A process may fork between the listing and the kill; what it leaves is found by the next round.
    while _has_children():
        import psutil

        children = psutil.Process().children(recursive=True)
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, timeout=1)
        _reap(0)


def _has_children() -> bool:
    """Quicker than listing all processes. What a child has orphaned is a child, too."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


# --- the step


class Stream:
    """Progress and outcome as JSON lines on a descriptor. Threads may share it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, event: str, **values: Any) -> None:
        message = {"event": event, **values}
        try:
            text = json.dumps(message, default=_as_plain, allow_nan=False)
        except ValueError:  # NaN and infinities are no JSON
            text = json.dumps(_finite(json.loads(json.dumps(message, default=_as_plain))))
        line = text.encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]

    def update(self, done: int, total: int, metrics: Mapping[str, Any] | None = None) -> None:
        self.send("progress", done=done, total=total, metrics=dict(metrics or {}))

    def note(self, message: str) -> None:
        self.send("note", message=message)


def _as_plain(value: Any) -> Any:
    """Numbers and arrays of libraries that this file must not import; paths."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
        from dflash.pipeline.elsewhere import settle

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
