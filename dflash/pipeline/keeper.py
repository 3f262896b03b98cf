"""The keeper of a step: it has no work but to leave no process of it behind.

It holds the runner's end of a pipe, its standard input: when that closes (the runner was killed), or when the step
ends, it kills whatever the step started, detached processes included.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import NoReturn


def keep(step: int) -> NoReturn:
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
