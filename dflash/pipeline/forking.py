"""A process that steps' processes are forked from: `python -m dflash.pipeline.forking KINDS DESCRIPTOR FOLDER`.

Starting Python and importing what every step needs takes a third of a second, a fork some milliseconds. Nothing but
that is ever done here: no thread is started, no step's code runs and no room is imported, so each fork is as clean as
a process of its own would be. The runner asks over a socket, which ends this when it closes, and sends along what is to
be the fork's standard input, output and error, and the lock. FOLDER is the run's, to be seen in a list of processes.

    from the runner    the path of a step's spec, with four descriptors
    to the runner      `PID` once it is forked, `PID STATUS` when it has ended (a status as of waitpid)
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from pathlib import Path

from dflash.pipeline.child import main as become_step
from dflash.pipeline.kinds import load_kinds

_LONGEST = 1 << 16  # bytes of a path

_STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""What tells every process of a run to end is for the runner and the steps. This one's end would kill a step that is
saving what it has; it ends with its socket."""


def main() -> None:
    """Import what every step needs, and fork until the socket closes. What child.py imports for every step belongs
    here, too: there is no bytecode, and each fork would compile it again (measured: 128 ms a step instead of 45)."""
    import psutil  # noqa: F401 - so that no keeper has to

    import dflash.pipeline.machines
    import dflash.validation  # noqa: F401 - pydantic is the slowest of all

    load_kinds(sys.argv[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    asked = socket.socket(fileno=int(sys.argv[2]))
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    while True:
        ready, _, _ = select.select([asked.fileno(), read], [], [])
        if read in ready:
            os.read(read, 4096)
            _tell_ended(asked)
        if asked.fileno() in ready and not _fork(asked):
            return


def _tell_ended(asked: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        asked.send(f"{pid} {status}".encode())


def _fork(asked: socket.socket) -> bool:
    """Fork a step's process; False when nobody asks any more."""
    spec, descriptors, _, _ = socket.recv_fds(asked, _LONGEST, 4)
    if not spec:
        return False
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        asked.close()
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        for target, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, target)
            os.close(descriptor)
        become_step(Path(os.fsdecode(spec)))
    for descriptor in descriptors:
        os.close(descriptor)
    asked.send(str(pid).encode())
    return True


if __name__ == "__main__":
    main()
