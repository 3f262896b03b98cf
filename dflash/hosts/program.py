"""A program of several modules of this package, as one file that the python3 of a far end runs.

Python runs a zip archive that has a `__main__.py`. The modules need the standard library alone; none of the packages'
own `__init__.py` goes along, so nothing else is imported.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from dflash.hosts.command import Command, Script

_DATE = (1980, 1, 1, 0, 0, 0)  # zip's zero: the same program has the same bytes


def archive(main: str, modules: Sequence[str], files: Mapping[str, bytes] | None = None) -> bytes:
    """A zip that runs `main()` of the module `main`. `modules` come along, and `files` by their names, which the
    program reads from `sys.argv[0]`."""
    contents = {"__main__.py": f"from {main} import main\nraise SystemExit(main())\n".encode(), **(files or {})}
    for module in {main, *modules}:
        parts = module.split(".")
        for depth in range(1, len(parts)):
            contents.setdefault("/".join(parts[:depth]) + "/__init__.py", b"")
        contents["/".join(parts) + ".py"] = _source(module)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in sorted(contents):
            packed.writestr(zipfile.ZipInfo(name, _DATE), contents[name], zipfile.ZIP_DEFLATED)
    return made.getvalue()


def program(python: str, packed: bytes, *arguments: str) -> Command:
    """The command that runs an archive with `python`, apart from that interpreter's own packages and variables."""
    return Command([python, "-ISB", *arguments], script=Script("program.pyz", packed, 2))


def _source(module: str) -> bytes:
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).read_bytes()
