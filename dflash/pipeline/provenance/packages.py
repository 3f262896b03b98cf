"""The packages that this process can import."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from dflash.environments.installed import normalised


def packages() -> dict[str, str]:
    """The version of each distribution that is installed, by its name as PEP 503 has it: of several, of that which is
    imported. What lies in a package is that package's own: setuptools has such a folder searched, once it is
    imported."""
    places = [place for place in sys.path if not (Path(place).parent / "__init__.py").exists()]
    found: dict[str, str] = {}
    for each in metadata.distributions(path=places):
        if each.name:
            found.setdefault(normalised(each.name), each.version)
    return dict(sorted(found.items()))
