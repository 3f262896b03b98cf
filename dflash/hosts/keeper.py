"""The far end of detached jobs: starts, shows, follows and stops them. Standard library, Python 3.8+.

A job is a folder `ROOT/ID/`:

    spec      what runs: folder, script, environment and argv, as it came
    script/   the script that came along, if one did, under its own name
    log       standard output and error of the job, in the order they came
    keeper    process id and start time of the keeper, whose descendants are the job
    told      written when the first process is told alone to end: by whom, and for how long; its time of change is when
    exit      written last: "status N" or "signal N", and the time

The keeper has a session of its own, and its command line holds MARK, by which an agent that ends, and kills what it
started, knows to leave it and all below it alone. It adopts what the job orphans, so that stopping finds every
process, whatever sessions they made.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import time

MARK = "dflash-job"
VARIABLE = b"DFLASH_JOB"
"""Set for a job, so that its processes are known where the keeper can not adopt orphans, or has been killed."""
POLL_S = 0.05


def write_whole(path: str, text: str) -> None:
    """Write a small file that appears whole, synced."""
    draft = path + ".tmp"
    with open(draft, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def read(path: str) -> str:
    """A small file, or nothing when it is not there."""
    try:
        with open(path) as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def stat_of(pid: int) -> tuple[int, str, str] | None:
    """(parent, start time in ticks, state) of a process; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), fields[19].decode(), fields[0].decode()


def descendants(root: int) -> list[int]:
    """Living processes below `root`."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        found = stat_of(int(name)) if name.isdigit() else None
        if found and found[2] != "Z":
            children.setdefault(found[0], []).append(int(name))
    below, todo = [], [root]
    while todo:
        more = children.get(todo.pop(), [])
        below += more
        todo += more
    return below


def marked(folder: str) -> list[int]:
    """Living processes that a job's environment was given to."""
    word, found = VARIABLE + b"=" + os.fsencode(os.path.basename(folder)), []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    ours = word in file.read().split(b"\0")
            except OSError:
                continue
            if ours:
                found.append(int(name))
    return found


def keeper_of(folder: str) -> int | None:
    """The keeper's process id while it lives."""
    words = read(os.path.join(folder, "keeper")).split()
    found = stat_of(int(words[0])) if len(words) == 2 else None
    return int(words[0]) if found and found[1] == words[1] and found[2] != "Z" else None


def start(folder: str) -> None:
    """Start the job whose spec comes on standard input; ends when the keeper is at work."""
    payload = sys.stdin.buffer.read()
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    os.mkdir(folder, 0o700)  # the spec may hold secrets among its variables
    with open(os.path.join(folder, "spec"), "wb") as file:
        file.write(payload)
    log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    told, tell = os.pipe()
    if os.fork():
        os.close(tell)
        word = os.read(told, 4096)
        if not word.startswith(b"started"):
            write_whole(os.path.join(folder, "exit"), f"status 127 {time.time():.3f}")
            sys.stderr.write(word.decode() or "the keeper did not start\n")
            sys.exit(127)
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, descriptor)
    keep(folder, payload, tell)
    os._exit(0)


def keep(folder: str, payload: bytes, tell: int) -> None:
    """The keeper's life: run the job, adopt its orphans, and write how it ended once all of it has."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    spec = unpack(payload)
    cwd, place, name, text = spec[:4]
    entries = 5 + 2 * int(spec[4])
    environment = {**os.environb, **dict(zip(spec[5:entries:2], spec[6:entries:2]))}  # noqa: B905 - not in 3.8
    argv = spec[entries:]
    if place:
        argv.insert(int(place), write_script(folder, os.fsdecode(name), text))
    environment.pop(b"DFLASH_AGENT", None)  # by which an agent that ends would know the job as its own
    environment[VARIABLE] = os.fsencode(os.path.basename(folder))
    me = stat_of(os.getpid())
    write_whole(os.path.join(folder, "keeper"), f"{os.getpid()} {me[1] if me else 0}")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)  # not SIG_IGN, which the job would inherit
    try:
        job = subprocess.Popen(argv, env=environment, cwd=cwd or None, start_new_session=True)
    except OSError as failure:
        os.write(tell, f"{failure.filename or argv[0]!r}: {failure.strerror}\n".encode())
        os._exit(127)
    os.write(tell, b"started")
    os.close(tell)
    how = "status 1"
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            break  # the job and all that it orphaned have ended
        if pid == job.pid:
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
            if not descendants(os.getpid()):
                break
    write_whole(os.path.join(folder, "exit"), f"{how} {time.time():.3f}")


def write_script(folder: str, name: str, text: bytes) -> bytes:
    """Keep a job's script beside its log; the script's path."""
    path = os.path.abspath(os.path.join(folder, "script", os.path.basename(name)))
    os.mkdir(os.path.dirname(path))
    with open(path, "xb") as file:
        file.write(text)
    return os.fsencode(path)


def unpack(payload: bytes) -> list[bytes]:
    """A list of u32 lengths and bytes."""
    items, place = [], 0
    while place < len(payload):
        end = place + 4 + struct.unpack_from(">I", payload, place)[0]
        items.append(payload[place + 4 : end])
        place = end
    return items


def state(folder: str) -> str:
    """`ID state detail` in one line: running, ended, or lost (the keeper died and left no record)."""
    name, end = os.path.basename(folder), read(os.path.join(folder, "exit"))
    if end:
        return f"{name} ended {end}"
    return f"{name} running" if keeper_of(folder) else f"{name} lost"


def show(folder: str) -> None:
    """Print the state of a job."""
    require(folder)
    print(state(folder))


def list_all(folder: str) -> None:
    """Print the states of all jobs below a folder, oldest first."""
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if os.path.exists(os.path.join(folder, name, "spec")):
            print(state(os.path.join(folder, name)))


def follow(folder: str, offset: int) -> None:
    """Write the log from `offset` on, as it grows, until the job has ended."""
    require(folder)
    with open(os.path.join(folder, "log"), "rb", buffering=0) as log:
        log.seek(offset)
        while True:
            over = state(folder).split()[1] != "running"  # asked before reading: what came before it is read after
            while True:
                data = log.read(1 << 16)
                if not data:
                    break
                view = memoryview(data)
                while view:
                    view = view[os.write(1, view) :]
            if over:
                return
            time.sleep(POLL_S)


def stop(folder: str, grace: float, alone: float, caller: str = "") -> None:
    """SIGTERM to every process of the job, SIGKILL to what is left after `grace` seconds; ends when none is. For
    `alone` seconds before that the job's first process is told alone, so that it ends the others as it knows to. It is
    told once, however often a `caller` stops the job meanwhile, whose connection may have broken; by another it is told
    again, which means that it is not to save what it has, and left alone for `grace` seconds only."""
    require(folder)
    keeper = keeper_of(folder)
    signalled: set[int] = set()
    others: set[int] = set()
    age, alone = told_before(folder, grace, alone, caller) if alone and keeper else (None, alone)
    begun = time.monotonic() - (age or 0.0)
    while True:
        passed = time.monotonic() - begun
        kill = passed > alone + grace
        found = set(marked(folder)) | set(descendants(keeper) if keeper and keeper_of(folder) else ())
        if not found - others and (others or keeper_of(folder) is None):
            return
        for pid in found - others:
            if passed < alone and keeper and (age is not None or (stat_of(pid) or (0,))[0] != keeper):
                continue
            if kill or pid not in signalled:
                signalled.add(pid)
                try:
                    os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
                except ProcessLookupError:
                    pass
                except PermissionError:  # another user's, by sudo say
                    others.add(pid)
        time.sleep(POLL_S)


def told_before(folder: str, grace: float, alone: float, caller: str) -> tuple[float | None, float]:
    """The seconds since this caller told the first process, if that still holds, or None, for one that is about to; and
    for how long that process is to be left alone."""
    path = os.path.join(folder, "told")
    if told_first(path, f"{alone} {caller}"):
        return None, alone
    words, _, by = read(path).partition(" ")
    until = float(words or alone)
    age = time.time() - os.stat(path).st_mtime
    if 0 <= age < until:
        if by == caller:
            return age, until
        alone = grace
    write_whole(path, f"{alone} {caller}")
    return None, alone


def told_first(path: str, text: str) -> bool:
    """Write a small file unless there is one; of two who do at once, one does."""
    draft = f"{path}.{os.getpid()}"
    with open(draft, "w") as file:
        file.write(text)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
    return True


def require(folder: str) -> None:
    """End with a line when there is no such job."""
    if not os.path.exists(os.path.join(folder, "spec")):
        sys.stderr.write(f"there is no job {os.path.basename(folder)}\n")
        sys.exit(3)


def main() -> None:
    """`MARK start|show|list|follow|stop FOLDER [NUMBER...] [CALLER]`"""
    role, folder = sys.argv[2], os.path.expanduser(sys.argv[3])
    if role == "start":
        start(folder)
    elif role == "show":
        show(folder)
    elif role == "list":
        list_all(folder)
    elif role == "follow":
        follow(folder, int(sys.argv[4]))
    elif role == "stop":
        stop(folder, float(sys.argv[4]), float(sys.argv[5]), sys.argv[6])


if __name__ == "__main__":
    main()
