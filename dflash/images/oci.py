"""An image as an OCI tar, read without unpacking it: its manifest, its layers, and every file in them."""

from __future__ import annotations

import hashlib
import json
import posixpath
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dflash.errors import storage_error
from dflash.images.failures import ImageError

CHUNK = 1 << 20


@dataclass(frozen=True)
class Layer:
    """One layer: the digest of its (compressed) bytes, their number, and the Dockerfile's step that made it."""

    digest: str
    size: int
    made_by: str


@dataclass(frozen=True)
class Entry:
    """A file of a layer as it is in the tar. `content` is the SHA-256 of a regular file, else what it points at."""

    path: str
    kind: str
    content: str
    size: int
    mode: int
    time: float
    owner: str


class OciTar:
    """An open OCI tar of one image for one platform."""

    def __init__(self, file: tarfile.TarFile, name: str) -> None:
        self._file, self.name = file, name
        self._members = {member.name: member for member in file.getmembers()}
        manifests = self._json("index.json")["manifests"]
        if len(manifests) != 1:
            raise ImageError(f"it has {len(manifests)} images, not one", where=name)
        self.digest: str = manifests[0]["digest"]
        self.manifest: Mapping[str, Any] = self._json(_blob(self.digest))
        self.config: Mapping[str, Any] = self._json(_blob(self.manifest["config"]["digest"]))
        steps = [step for step in self.config.get("history", ()) if not step.get("empty_layer")]
        made_by = [str(step.get("created_by", "")) for step in steps]
        entries = self.manifest["layers"]
        made_by = ["of the base"] * (len(entries) - len(made_by)) + made_by
        self.layers = [Layer(each["digest"], each["size"], by) for each, by in zip(entries, made_by, strict=True)]

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its configuration."""
        return dict(self.config["config"].get("Labels") or {})

    def entries(self, layer: Layer, read: Callable[[str], bool] = lambda path: False) -> Iterator[tuple[Entry, bytes]]:
        """Every entry of a layer in the tar's order, and the bytes of those whose path `read` says yes to."""
        with self._open(_blob(layer.digest)) as packed, tarfile.open(fileobj=packed, mode="r:*") as files:
            for member in files:
                path = posixpath.normpath("/" + member.name)
                content, kept = member.linkname, b""
                stream = files.extractfile(member) if member.isreg() else None
                if stream is not None:
                    hashed, wanted = hashlib.sha256(), read(path)
                    while piece := stream.read(CHUNK):
                        hashed.update(piece)
                        kept += piece if wanted else b""
                    content = hashed.hexdigest()
                kind = "file" if member.isreg() else str(member.type, "ascii", "replace")
                owner = f"{member.uid}:{member.gid}"
                yield Entry(path, kind, content, member.size, member.mode, float(member.mtime), owner), kept

    def _open(self, name: str) -> IO[bytes]:
        stream = self._file.extractfile(self._members[name]) if name in self._members else None
        if stream is None:
            raise ImageError(f"{name} is not in it", where=self.name)
        return stream

    def _json(self, name: str) -> Any:
        with self._open(name) as stream:
            return json.load(stream)


@contextmanager
def open_oci(path: Path) -> Iterator[OciTar]:
    """Open an OCI tar. Raises StorageError, or ImageError when it is none."""
    try:
        with tarfile.open(path, "r:") as file:
            yield OciTar(file, str(path))
    except (tarfile.TarError, KeyError, ValueError) as failure:
        raise ImageError(f"not an OCI image: {failure}", where=str(path)) from failure
    except OSError as failure:
        raise storage_error(failure, path) from failure


def files_of(image: OciTar, read: Callable[[str], bool]) -> tuple[dict[str, Entry], dict[str, bytes]]:
    """The image's files with all layers on top of each other, by path; and the bytes of those that `read` wants."""
    files: dict[str, Entry] = {}
    contents: dict[str, bytes] = {}
    for layer in image.layers:
        for entry, content in image.entries(layer, read):
            folder, name = posixpath.split(entry.path)
            if name == ".wh..wh..opq":
                _forget(files, folder, itself=False)
            elif name.startswith(".wh."):
                _forget(files, posixpath.join(folder, name[4:]), itself=True)
            else:
                if files.get(entry.path) and entry.kind != tarfile.DIRTYPE.decode():
                    _forget(files, entry.path, itself=True)
                files[entry.path] = entry
                if content:
                    contents[entry.path] = content
    return files, {path: data for path, data in contents.items() if path in files}


def plain(files: Mapping[str, Entry], entry: Entry) -> list[Any] | None:
    """[bytes, SHA-256] of a file, [0, what it points at] of a symbolic link; None for a folder and anything else."""
    if entry.kind == tarfile.LNKTYPE.decode():
        entry = files.get(posixpath.normpath("/" + entry.content), entry)
    if entry.kind == "file":
        return [entry.size, entry.content]
    return [0, entry.content] if entry.kind == tarfile.SYMTYPE.decode() else None


def _forget(files: dict[str, Entry], path: str, *, itself: bool) -> None:
    if itself:
        files.pop(path, None)
    below = path.rstrip("/") + "/"
    for known in [each for each in files if each.startswith(below)]:
        del files[known]


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")
