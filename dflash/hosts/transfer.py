"""Files and folders from one end of a chain to the other: whole or not there, resumed, checked, kept when the same.

One file for both ends, because both play both roles; standard library, Python 3.8+, nothing a bare python3 lacks.

    the offering end    sends a manifest: each path with kind, mode, size and SHA-256
    the receiving end   answers, for each file, how many bytes of exactly this content it has already
                        (all of them, or a part that an earlier attempt left), then gets the rest, in order

A file is received into `.NAME.<hash>.part` beside its place; when its hash is right it is synced, given its mode and
renamed. A message is a u32 length and a list, each item a u32 length and bytes; the contents follow without framing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # not everything of it is in python3-minimal
    from collections.abc import Callable, Iterator

    Read = Callable[[int], bytes]
    Write = Callable[[bytes], object]

PIECE = 1 << 18


class TransferError(Exception):
    """The other end can not go on; its words."""


def send(write: Write, items: list[bytes]) -> None:
    """One message."""
    payload = b"".join(struct.pack(">I", len(item)) + item for item in items)
    write(struct.pack(">I", len(payload)) + payload)


def exactly(read: Read, size: int) -> bytes:
    """`size` bytes. Raises EOFError when the stream ends before."""
    data = b""
    while len(data) < size:
        more = read(size - len(data))
        if not more:
            raise EOFError("the stream ended in the middle of a transfer")
        data += more
    return data


def get(read: Read) -> list[bytes]:
    """The next message; raises TransferError when it tells of a failure at the other end."""
    payload = exactly(read, struct.unpack(">I", exactly(read, 4))[0])
    items, start = [], 0
    while start < len(payload):
        end = start + 4 + struct.unpack_from(">I", payload, start)[0]
        items.append(payload[start + 4 : end])
        start = end
    if items[:1] == [b"failed"]:
        raise TransferError(os.fsdecode(items[1]))
    return items


def digest(path: bytes, size: int | None = None) -> bytes:
    """SHA-256, hexadecimal, of a file or of its first `size` bytes."""
    state = hashlib.sha256()
    left = size if size is not None else 1 << 62
    with open(path, "rb") as file:
        while left:
            piece = file.read(min(PIECE, left))
            if not piece:
                break
            state.update(piece)
            left -= len(piece)
    return state.hexdigest().encode()


def entries(base: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """(relative path, kind, mode) of `base` (as b"") and all below it, parents first. Kinds: f, d, l."""
    todo = [b""]
    while todo:
        relative = todo.pop()
        path = os.path.join(base, relative) if relative else base
        status = os.stat(path) if not relative else os.lstat(path)
        kind = b"d" if stat.S_ISDIR(status.st_mode) else b"l" if stat.S_ISLNK(status.st_mode) else b"f"
        if kind == b"f" and not stat.S_ISREG(status.st_mode):
            continue  # sockets, pipes and devices are not files to copy
        yield relative, kind, stat.S_IMODE(status.st_mode)
        if kind == b"d":
            todo += [os.path.join(relative, name) for name in sorted(os.listdir(path), reverse=True)]


def unseen(done: int, total: int) -> None:
    """Nobody watches how far it is."""


def offer(base: bytes, read: Read, write: Write, progress: Callable[[int, int], object] = unseen) -> tuple[int, int]:
    """Send `base`, a file or a folder, to a receiver: bytes in all, and those of them that were there already."""
    manifest, files = [], []
    for relative, kind, mode in entries(base):
        path = os.path.join(base, relative) if relative else base
        size, content = 0, b""
        if kind == b"l":
            content = os.readlink(path)
        elif kind == b"f":
            size, content = os.path.getsize(path), digest(path)
            files.append((path, size))
        manifest += [relative, kind, b"%o" % mode, b"%d" % size, content]
    send(write, [b"manifest", *manifest])
    there = [int(word) for word in get(read)[1:]]
    total, kept = sum(size for _, size in files), sum(there)
    done = kept
    progress(done, total)
    for (path, size), offset in zip(files, there):  # noqa: B905 - strict= is not in 3.8
        with open(path, "rb") as file:
            file.seek(offset)
            while offset < size:
                piece = file.read(min(PIECE, size - offset))
                if not piece:
                    raise TransferError(f"{os.fsdecode(path)} became shorter while it was sent")
                write(piece)
                offset += len(piece)
                done += len(piece)
                progress(done, total)
    get(read)
    return total, kept


def receive(base: bytes, read: Read, write: Write, progress: Callable[[int, int], object] = unseen) -> tuple[int, int]:
    """Put what an offering end sends at `base`; what is there with the same content is left alone. As `offer`."""
    items = get(read)[1:]
    # Two transfers of one file would write one part: others into this folder wait. The kernel lets go of it with us.
    folder = os.path.dirname(base) or b"."
    os.makedirs(folder, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        return _received(base, items, read, write, progress)
    finally:
        os.close(held)


def _received(
    base: bytes, items: list[bytes], read: Read, write: Write, progress: Callable[[int, int], object]
) -> tuple[int, int]:
    wanted, there, modes = [], [], []
    folders: set[bytes] = {base}
    for place in range(0, len(items), 5):
        relative, kind, mode, size, content = items[place : place + 5]
        path = _inside(base, relative, kind, folders)
        if kind == b"d":
            os.makedirs(path, exist_ok=True)
            os.chmod(path, int(mode, 8) | 0o700)
            modes.append((path, int(mode, 8)))
        elif kind == b"l":
            _link(path, content)
        elif os.path.isdir(path) and not os.path.islink(path):
            raise TransferError(f"{os.fsdecode(path)} is a folder; name the file in it")
        else:
            os.makedirs(os.path.dirname(path) or b".", exist_ok=True)
            offset = _have(path, int(mode, 8), int(size), content)
            there.append(offset)
            wanted.append((path, int(mode, 8), int(size), content, offset))
    send(write, [b"have", *(b"%d" % offset for offset in there)])
    total, kept = sum(size for _, _, size, _, _ in wanted), sum(there)
    done = kept
    progress(done, total)
    for path, mode_bits, length, content, offset in wanted:
        if offset == length and not os.path.exists(part_of(path, content)):
            continue
        with open(part_of(path, content), "ab", opener=_no_link) as file:
            while offset < length:
                piece = read(min(PIECE, length - offset))
                if not piece:
                    raise EOFError(f"the stream ended in the middle of {os.fsdecode(path)}")
                file.write(piece)
                offset += len(piece)
                done += len(piece)
                progress(done, total)
        _finish(path, mode_bits, content)
    for path, mode_bits in reversed(modes):  # now that nothing is written below it any more
        os.chmod(path, mode_bits)
    send(write, [b"done"])
    return total, kept


def _inside(base: bytes, relative: bytes, kind: bytes, folders: set[bytes]) -> bytes:
    """The path of an item, with no link on its way below `base`, be it of this transfer or from before: through one the
    other end could write anywhere. `folders` has those that are known to be none, and gets more."""
    parts = relative.split(b"/") if relative else []
    if {b"", b".", b".."} & set(parts) or (kind == b"l" and not parts):
        raise TransferError(f"a path leads out of the folder: {os.fsdecode(relative)}")
    above = base
    for part in parts if kind == b"d" else parts[:-1]:
        above = os.path.join(above, part)
        if above in folders:
            continue
        if os.path.islink(above):
            raise TransferError(f"{os.fsdecode(above)} is a link, so nothing is put below it: move it away")
        if os.path.isdir(above):  # and so it stays: nothing here replaces a folder
            folders.add(above)
    return os.path.join(base, relative) if relative else base


def _no_link(path: str | bytes, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def part_of(path: bytes, content: bytes) -> bytes:
    """Where a file is received: named by its hash, so that only the same content is ever gone on with."""
    folder, name = os.path.split(path)
    return os.path.join(folder, b".%s.%s.part" % (name[:100], content[:16]))


def _have(path: bytes, mode: int, size: int, content: bytes) -> int:
    """How many bytes of the wanted content are here already."""
    is_file = os.path.isfile(path) and not os.path.islink(path)
    if is_file and os.path.getsize(path) == size and digest(path) == content:
        if stat.S_IMODE(os.stat(path).st_mode) != mode:
            os.chmod(path, mode)
        return size
    part = part_of(path, content)
    if os.path.islink(part):
        os.unlink(part)
    if not os.path.exists(part):
        open(part, "xb").close()
        return 0
    if os.path.getsize(part) > size:
        os.truncate(part, 0)
    return os.path.getsize(part)


def _finish(path: bytes, mode: int, content: bytes) -> None:
    part = part_of(path, content)
    if digest(part) != content:
        os.unlink(part)
        raise TransferError(f"{os.fsdecode(path)} arrived with another hash; try again")
    descriptor = os.open(part, os.O_RDONLY)
    try:
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(part, path)


def _link(path: bytes, target: bytes) -> None:
    if os.path.islink(path) and os.readlink(path) == target:
        return
    draft = part_of(path, b"link")
    if os.path.lexists(draft):
        os.unlink(draft)
    os.symlink(target, draft)
    os.replace(draft, path)


def main() -> None:
    """The far end: `offer PATH` or `receive PATH`, over standard input and output."""
    role = {"offer": offer, "receive": receive}[sys.argv[1]]

    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]

    try:
        role(os.path.expanduser(os.fsencode(sys.argv[2])), lambda size: os.read(0, size), write)
    except (OSError, TransferError, EOFError) as failure:
        path = getattr(failure, "filename", None)
        reason = getattr(failure, "strerror", None) or str(failure)
        send(write, [b"failed", os.fsencode(f"{os.fsdecode(path)}: {reason}" if path else reason)])
        sys.exit(1)


if __name__ == "__main__":
    main()
