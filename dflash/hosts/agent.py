"""The far end of a chain: runs commands for one caller, over one stream. Sent there; standard library, Python 3.8+.

A frame is a header (command id, kind, length) and a payload. Kinds and their payloads:

    to the agent    RUN list     start a command: cwd or nothing; a script's place in argv, name and text, or three
                                 times nothing; number of environment entries, names and values; argv
                    INPUT bytes  standard input of a command; empty means its end
                    ACK  u32     so many bytes of the command's output were consumed; output and errors share a window
                    KILL u32     send this signal to the command's process group
                    BEAT         the caller lives
    from the agent  HELLO list   python, process id, user id, host name; the first frame
                    STARTED u32  the command's process id
                    OUTPUT bytes, ERRORS bytes
                    ACK  u32     so many bytes of input were taken by the command
                    EXIT u8 u32  0 and a status, or 1 and a signal: the last frame of a command
                    FAIL list    the command never ran: errno, and the path or the words of the error
                    BEAT         answer to a BEAT

Flow control: each side may have at most WINDOW bytes under way for a command and direction, so memory stays flat
whatever a command writes and however slowly the caller reads. A command's stdin, stdout and stderr are pipes and it
leads a session of its own. A list is each item's length (u32) and bytes: Debian's python3-minimal has no json, and
an argument need not be text.

Attached commands die with the caller: when the stream ends, or nothing has come for SILENCE seconds (a cut link),
the agent kills its descendants, whatever sessions they made, and ends. Where it can not adopt orphans (subreaper
needs ctypes), it knows them by a variable in their environment.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import selectors
import signal
import struct
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not in python3-minimal
    from collections.abc import Iterable
    from types import FrameType
    from typing import IO

HEADER = struct.Struct(">IBI")
RUN, INPUT, ACK, KILL, BEAT, HELLO, STARTED, OUTPUT, ERRORS, EXIT, FAIL = range(1, 12)
WINDOW = 1 << 20
CHUNK = 1 << 16
SILENCE = 4.0
PATIENCE = 3.0
ORPHANS_S = 0.3
VARIABLE = b"DFLASH_AGENT"


def pack_list(items: Iterable[bytes]) -> bytes:
    """A list of bytes as one payload."""
    return b"".join(struct.pack(">I", len(item)) + item for item in items)


def unpack_list(payload: bytes) -> list[bytes]:
    """What `pack_list` packed."""
    items, start = [], 0
    while start < len(payload):
        end = start + 4 + struct.unpack_from(">I", payload, start)[0]
        items.append(payload[start + 4 : end])
        start = end
    return items


def pack(command: int, kind: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return HEADER.pack(command, kind, len(payload)) + payload


class Frames:
    """Cuts a byte stream into (command, kind, payload)."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """The frames that `data` completes."""
        self._buffer += data
        frames, start = [], 0
        while len(self._buffer) - start >= HEADER.size:
            command, kind, length = HEADER.unpack_from(self._buffer, start)
            end = start + HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append((command, kind, bytes(self._buffer[start + HEADER.size : end])))
            start = end
        del self._buffer[:start]
        return frames


class Command:
    """A running command: its process, pipes and windows, and the folder of its script if it has one."""

    def __init__(self, process: subprocess.Popen[bytes], folder: bytes | None) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process, self.folder = process, folder
        self.pid = process.pid
        self.input: int | None = process.stdin.fileno()
        self.pending = bytearray()
        self.input_ended = False
        self.streams: dict[int, IO[bytes]] = {each.fileno(): each for each in (process.stdout, process.stderr)}
        self.outputs = {process.stdout.fileno(): OUTPUT, process.stderr.fileno(): ERRORS}
        self.unacknowledged = 0
        self.exit: bytes | None = None
        self.exited_at = 0.0


class Agent:
    """One caller's commands, driven by one loop; nothing blocks but the loop's own wait."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink = source, sink
        self.commands: dict[int, Command] = {}
        self.frames = Frames()
        self.out = bytearray()
        self.ended = False
        self.heard = time.monotonic()
        self.mark = os.urandom(8).hex().encode()
        self.selector = selectors.DefaultSelector()
        wake_read, self.wake_write = os.pipe()
        for descriptor in (source, sink, wake_read, self.wake_write):
            os.set_blocking(descriptor, False)
        self.wake_read = wake_read
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.watched: dict[int, tuple[int, int | None]] = {}

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.ended = True

    def send(self, command: int, kind: int, payload: bytes = b"") -> None:
        self.out += pack(command, kind, payload)

    def serve(self) -> None:
        """Serve until the caller is gone; then leave no process behind."""
        self.send(0, HELLO, pack_list(hello()))
        try:
            while not self.ended:
                self._turn()
        finally:
            kill_all(self.mark)
            for command in self.commands.values():
                drop(command.folder)

    def _turn(self) -> None:
        self._watch()
        for key, events in self.selector.select(0.5):
            if key.fd == self.source and events & selectors.EVENT_READ:
                self._read_caller()
            if key.fd == self.sink and events & selectors.EVENT_WRITE:
                self._write_caller()
            if key.fd == self.wake_read:
                os.read(self.wake_read, 4096)
            if key.data is not None:
                self._serve_pipe(key.data, key.fd)
        self._reap()
        if time.monotonic() - self.heard > SILENCE:
            self.ended = True

    def _watch(self) -> None:
        """Register exactly what the loop can act on now; the windows decide."""
        wanted: dict[int, tuple[int, int | None]] = {
            self.source: (selectors.EVENT_READ, None),
            self.wake_read: (selectors.EVENT_READ, None),
        }
        if self.out:
            wanted[self.sink] = (selectors.EVENT_WRITE, None)
        full = len(self.out) > WINDOW
        for identity, command in self.commands.items():
            if command.pending and command.input is not None:
                wanted[command.input] = (selectors.EVENT_WRITE, identity)
            if not full and command.unacknowledged < WINDOW:
                for descriptor in command.outputs:
                    wanted[descriptor] = (selectors.EVENT_READ, identity)
        for descriptor in [each for each in self.watched if self.watched[each] != wanted.get(each)]:
            self.selector.unregister(descriptor)
            del self.watched[descriptor]
        for descriptor, what in wanted.items():
            if descriptor not in self.watched:
                self.selector.register(descriptor, *what)
                self.watched[descriptor] = what

    def _forget(self, descriptor: int) -> None:
        if descriptor in self.watched:
            self.selector.unregister(descriptor)
            del self.watched[descriptor]

    def _read_caller(self) -> None:
        try:
            data = os.read(self.source, 4 * CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return
        self.heard = time.monotonic()
        for command, kind, payload in self.frames.feed(data):
            self._obey(command, kind, payload)

    def _write_caller(self) -> None:
        try:
            written = os.write(self.sink, self.out[: 4 * CHUNK])
        except BlockingIOError:
            return
        except OSError:
            self.ended = True
            return
        del self.out[:written]

    def _obey(self, identity: int, kind: int, payload: bytes) -> None:
        if kind == BEAT:
            self.send(0, BEAT)
        elif kind == RUN:
            self._run(identity, unpack_list(payload))
        command = self.commands.get(identity)
        if command is None:
            return
        if kind == INPUT and not command.input_ended:
            command.pending += payload
            command.input_ended = not payload
            if command.input is None:
                self._drop_input(identity, command)
            elif command.input_ended and not command.pending:
                self._close_input(command)
        elif kind == ACK:
            command.unacknowledged -= struct.unpack(">I", payload)[0]
        elif kind == KILL and command.exit is None:
            kill_group(command.pid, struct.unpack(">I", payload)[0])

    def _run(self, identity: int, request: list[bytes]) -> None:
        directory, place, name, text = request[:4]
        entries = 5 + 2 * int(request[4])
        changes = dict(zip(request[5:entries:2], request[6:entries:2]))  # noqa: B905 - strict= is not in 3.8
        argv, folder = request[entries:], None
        try:
            if place:
                folder = script_folder()
                argv.insert(int(place), write_script(folder, name, text))
            process = subprocess.Popen(
                argv,
                env={**os.environb, VARIABLE: self.mark, **changes},
                cwd=directory or None,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                restore_signals=True,
            )
        except (OSError, ValueError) as failure:
            drop(folder)
            missing = getattr(failure, "filename", None)
            what = os.fsencode(missing) if missing else str(failure).encode()
            number = getattr(failure, "errno", None) or errno.EINVAL
            self.send(identity, FAIL, pack_list([b"%d" % number, what]))
            return
        command = Command(process, folder)
        for stream in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(stream.fileno(), False)  # type: ignore[union-attr]
        self.commands[identity] = command
        self.send(identity, STARTED, struct.pack(">I", command.pid))

    def _serve_pipe(self, identity: int, descriptor: int) -> None:
        command = self.commands.get(identity)
        if command is None:
            return
        if descriptor == command.input:
            self._feed(identity, command)
        elif descriptor in command.outputs:
            self._drain(identity, command, descriptor)

    def _feed(self, identity: int, command: Command) -> None:
        assert command.input is not None
        try:
            written = os.write(command.input, command.pending[:CHUNK])
        except BlockingIOError:
            return
        except OSError:  # the command closed its input: it wants no more
            self._close_input(command)
            self._drop_input(identity, command)
            return
        del command.pending[:written]
        self.send(identity, ACK, struct.pack(">I", written))
        if command.input_ended and not command.pending:
            self._close_input(command)

    def _drop_input(self, identity: int, command: Command) -> None:
        if command.pending:
            self.send(identity, ACK, struct.pack(">I", len(command.pending)))
            command.pending.clear()

    def _close_input(self, command: Command) -> None:
        if command.input is not None and command.process.stdin is not None:
            self._forget(command.input)
            command.process.stdin.close()
            command.input = None

    def _drain(self, identity: int, command: Command, descriptor: int) -> None:
        room = min(CHUNK, WINDOW - command.unacknowledged)
        if room <= 0:  # the other stream has just filled the window; reading nothing would look like the end
            return
        try:
            data = os.read(descriptor, room)
        except BlockingIOError:
            return
        if data:
            command.unacknowledged += len(data)
            self.send(identity, command.outputs[descriptor], data)
            return
        self._close_output(command, descriptor)

    def _close_output(self, command: Command, descriptor: int) -> None:
        self._forget(descriptor)
        del command.outputs[descriptor]
        command.streams.pop(descriptor).close()

    def _reap(self) -> None:
        by_pid = {command.pid: command for command in self.commands.values()}
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid in by_pid:
                    self._exited(by_pid[pid], status)
        except ChildProcessError:
            pass
        now = time.monotonic()
        for identity, command in list(self.commands.items()):
            if command.exit is None:
                continue
            # What the command left running may hold its pipes. Its own group has been killed; what escaped into
            # another session gets a moment, and is killed when the caller goes.
            if command.outputs and now - command.exited_at > ORPHANS_S and command.unacknowledged < WINDOW:
                for descriptor in list(command.outputs):
                    self._drain(identity, command, descriptor)
                    if descriptor in command.outputs and not readable(descriptor):
                        self._close_output(command, descriptor)
            if not command.outputs:
                self._close_input(command)
                self._drop_input(identity, command)
                drop(command.folder)
                self.send(identity, EXIT, command.exit)
                del self.commands[identity]

    def _exited(self, command: Command, status: int) -> None:
        command.process.returncode = 0  # reaped here: Popen must not wait for it again
        command.exited_at = time.monotonic()
        if os.WIFSIGNALED(status):
            command.exit = struct.pack(">BI", 1, os.WTERMSIG(status))
        else:
            command.exit = struct.pack(">BI", 0, os.WEXITSTATUS(status))
        kill_group(command.pid, signal.SIGKILL)


def script_folder() -> bytes:
    """A new folder of this user's own, where there is room for one."""
    last: OSError | None = None
    for place in (os.environb.get(b"TMPDIR"), b"/tmp", b"/var/tmp", b"/dev/shm"):
        folder = os.path.join(place or b"/", b"dflash-" + os.urandom(8).hex().encode())
        try:
            if place:
                os.mkdir(folder, 0o700)
                return folder
        except OSError as failure:
            last = failure
    raise last or OSError(errno.ENOENT, "no folder for a script")


def write_script(folder: bytes, name: bytes, text: bytes) -> bytes:
    """The script as a file under its own name, which some interpreters go by; its path."""
    path = os.path.join(folder, os.path.basename(name) or b"script")
    with open(path, "xb") as file:
        file.write(text)
    return path


def drop(folder: bytes | None) -> None:
    """Remove a script's folder, with whatever else is in it."""
    for place, _, files in os.walk(folder, topdown=False) if folder else ():
        with contextlib.suppress(OSError):
            for name in files:
                os.unlink(os.path.join(place, name))
            os.rmdir(place)


def readable(descriptor: int) -> bool:
    """Whether a pipe has bytes, or its end, to read at once."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(0))


def kill_group(group: int, number: int) -> None:
    """Signal a process group that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def is_keeper(pid: int) -> bool:
    """Whether a process keeps a detached job: it and all below it outlive the agent (see keeper.py)."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"dflash-job" in file.read().split(b"\0")
    except OSError:
        return False


def descendants(root: int) -> list[int]:
    """Process ids below `root`, from /proc, without detached jobs."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/" + name + "/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = [pid for pid in children.get(todo.pop(), []) if not is_keeper(pid)]
        found += below
        todo += below
    return found


def marked(mark: bytes) -> list[int]:
    """Living processes whose environment began with the variable of this agent, without detached jobs."""
    word, found = VARIABLE + b"=" + mark, []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open("/proc/" + name + "/environ", "rb") as file:
                    ours = word in file.read().split(b"\0")
            except OSError:
                continue
            if ours and not is_keeper(int(name)):
                found.append(int(name))
    return found


def kill_all(mark: bytes) -> None:
    """Kill all that this process started, however it was orphaned; forks meanwhile are caught by the next round.
    What another user's is, by sudo say, can not be killed from here, and is not waited for; nor, after PATIENCE, what
    sleeps in the kernel and is deaf to signals, as a program does on a GPU that died."""
    until: dict[int, float] = {}
    while True:
        now = time.monotonic()
        found = {pid for pid in descendants(os.getpid()) + marked(mark) if until.setdefault(pid, now + PATIENCE) > now}
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                until[pid] = now
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def hello() -> list[bytes]:
    """Who and where this agent is."""
    return [
        sys.version.split()[0].encode(),
        b"%d" % os.getpid(),
        b"%d" % os.geteuid(),
        os.fsencode(os.uname().nodename),
    ]


def main() -> None:
    """Serve, in a child: LXD kills the process that it was told to run when its client dies, and an agent that is
    killed leaves what it started."""
    served = os.fork()
    if served:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, frame: os.kill(served, number))
        os.close(0)  # the streams are the child's: their end is its end
        os.close(1)
        os.waitpid(served, 0)
        os._exit(0)
    serve()
    os._exit(0)


def serve() -> None:
    """Become the subreaper of what is started here, complete a bare environment, and serve."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import ctypes  # Debian's python3-minimal has none

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans stay findable
    with contextlib.suppress(KeyError):
        os.environ.setdefault("HOME", pwd.getpwuid(os.geteuid()).pw_dir)
    os.environ.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    Agent(0, 1).serve()


if __name__ == "__main__":
    main()
