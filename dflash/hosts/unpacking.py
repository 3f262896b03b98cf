"""The far end of package.py: keeps this project's package, or all of its source, there, a folder for each content.

    ROOT/code/ID/dflash/...    ID is a hash of all of it, so what is there is right or not used
    ROOT/code/ID.changed-N     what somebody changed: moved aside when it was found, and made again

Files as bytes are a list (each item a u32 length and bytes): the path of each file, "x" if it is a program or "l" if it
is a link, and its content or what it leads to, in the order of their paths. Run as `python3 -c`; standard library,
Python 3.8+, nothing a bare python3 lacks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not in python3-minimal
    from collections.abc import Iterable, Iterator

ID_LENGTH = 16


def packed(folder: str, names: Iterable[str]) -> bytes:
    """Files below a folder, named by their paths from there."""
    made = []
    for name in sorted(names):
        path = os.path.join(folder, name)
        if os.path.islink(path):
            items = os.fsencode(name), b"l", os.fsencode(os.readlink(path))
        else:
            with open(path, "rb") as file:
                mode = b"x" if os.fstat(file.fileno()).st_mode & 0o100 else b""
                items = os.fsencode(name), mode, file.read()
        made += [struct.pack(">I", len(item)) + item for item in items]
    return b"".join(made)


def package_files(folder: str) -> list[str]:
    """The files of a package by their paths from beside it, without what Python and editors put there."""
    base, found = os.path.dirname(folder), []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        kept = [name for name in files if not name.endswith(".pyc") and not name.startswith(".")]
        found += [os.path.relpath(os.path.join(place, name), base) for name in kept]
    return found


def read_package(folder: str) -> bytes:
    """A package, in a folder of its own name."""
    return packed(os.path.dirname(folder), package_files(folder))


def digest(package: bytes) -> str:
    """What a package is called."""
    return hashlib.sha256(package).hexdigest()[:ID_LENGTH]


def _items(package: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(package):
        end = start + 4 + struct.unpack_from(">I", package, start)[0]
        yield package[start + 4 : end]
        start = end


def files(package: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """The path, mode and content of each file of a package."""
    items = list(_items(package))
    return zip(items[::3], items[1::3], items[2::3])  # noqa: B905 - strict= is not in 3.8


def write_package(package: bytes, folder: str) -> None:
    """The files of `package` below `folder`, which is new."""
    for relative, mode, content in files(package):
        path = os.path.join(folder, os.fsdecode(relative))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if mode == b"l":
            os.symlink(content, path)
            continue
        with open(path, "xb") as file:
            file.write(content)
        if mode:
            os.chmod(path, 0o755)


def take(root: str, identity: str, package: bytes) -> str:
    """Where the package `identity` is, or nothing: it is not there, and `package` is empty. Raises OSError."""
    code = os.path.join(os.path.realpath(os.path.expanduser(root)), "code")
    place = os.path.join(code, identity)
    _forget_compiled(place)
    if _is_right(place, identity):
        return place
    if not package:
        return ""
    if digest(package) != identity:
        raise OSError(0, "it arrived with another hash; try again", place)
    os.makedirs(code, exist_ok=True)
    held = os.open(code, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)  # the kernel lets go of it with us, so every draft that is there now is dead
        for name in os.listdir(code):
            if name.startswith(".draft-"):
                _remove(os.path.join(code, name))
        if _is_right(place, identity):
            return place
        draft = os.path.join(code, f".draft-{identity}")
        try:
            write_package(package, draft)
            if os.path.lexists(place):
                os.rename(place, _aside(place))
            os.rename(draft, place)
        finally:
            _remove(draft)
        return place
    finally:
        os.close(held)


def _is_right(place: str, identity: str) -> bool:
    """Not only there: a power cut, or a person, may have changed it. All that lies there could be imported."""
    found = []
    for folder, folders, files in os.walk(place):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        found += [os.path.relpath(os.path.join(folder, name), place) for name in files + links]
    return bool(found) and digest(packed(place, found)) == identity


def _forget_compiled(place: str) -> None:
    """Python believes what lies in __pycache__, whoever wrote it. Programs that run there do without."""
    for folder, folders, _ in os.walk(place):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
            with contextlib.suppress(OSError):  # another one does it, too
                _remove(os.path.join(folder, "__pycache__"))


def _aside(place: str) -> str:
    number = 1
    while os.path.lexists(f"{place}.changed-{number}"):
        number += 1
    return f"{place}.changed-{number}"


def _remove(folder: str) -> None:
    if os.path.islink(folder):
        os.unlink(folder)
    for place, folders, files in os.walk(folder, topdown=False):
        for name in files:
            os.unlink(os.path.join(place, name))
        for name in folders:
            path = os.path.join(place, name)
            (os.unlink if os.path.islink(path) else os.rmdir)(path)
    if os.path.isdir(folder):
        os.rmdir(folder)


def main() -> int:
    """`ROOT ID`, and the package on standard input, compressed, or nothing to ask whether it is there."""
    given = sys.stdin.buffer.read()
    try:
        print(take(sys.argv[1], sys.argv[2], zlib.decompress(given) if given else b""))
    except OSError as failure:
        sys.stderr.write(f"{failure.filename or sys.argv[1]}: {failure.strerror or failure}\n")
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
