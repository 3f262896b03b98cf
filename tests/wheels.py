"""Small real wheels, made on the spot, so that installers can be tested without an index."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import zipfile
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    files: dict[str, bytes] | None = None,
    *,
    executables: tuple[str, ...] = (),
    requires: tuple[str, ...] = (),
) -> Path:
    """A wheel of `files` (default: one module called `name`), in `folder`."""
    info = f"{name}-{version}.dist-info"
    contents = dict(files or {f"{name}/__init__.py": f"version = {version!r}\n".encode()})
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode()
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},{_record_hash(data)},{len(data)}\n" for path, data in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for path, data in contents.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (0o100755 if path in executables else 0o100644) << 16  # a regular file
            archive.writestr(entry, data)
    return wheel


def repack(folder: Path, name: str) -> Path:
    """A wheel of an installed distribution, as it is installed here: the real thing, without a download."""
    installed = importlib.metadata.distribution(name)
    files, executables = {}, []
    for path in installed.files or ():
        text = path.as_posix()
        if "__pycache__" in text or ".dist-info/" in text:
            continue
        data = Path(str(installed.locate_file(path))).read_bytes()
        if text.startswith("../../../bin/"):
            if data.startswith(b"#!"):
                continue  # made by the installer from an entry point
            text = f"{name}-{installed.version}.data/scripts/{path.name}"
            executables.append(text)
        files[text] = data
    return make_wheel(folder, name, installed.version, files, executables=tuple(executables))


def pin(wheel: Path, *, sha256: str | None = None) -> str:
    """The wheel's entry in a lock."""
    name, version = wheel.name.split("-")[:2]
    digest = sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{name}=={version} \\\n    --hash=sha256:{digest}\n"


def _record_hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
