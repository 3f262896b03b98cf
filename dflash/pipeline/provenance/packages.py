"""The packages that this process can import."""

from __future__ import annotations

from importlib import metadata

from dflash.environments.installed import normalised


def packages() -> dict[str, str]:
    """The version of each distribution that is installed, by its name as PEP 503 has it: of several, of that which is
    imported."""
    found: dict[str, str] = {}
    for each in metadata.distributions():
        if each.name:
            found.setdefault(normalised(each.name), each.version)
    return dict(sorted(found.items()))
