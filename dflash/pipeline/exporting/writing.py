"""Documents as YAML that a person can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

_MODELS = {"skypilot": "SkyPilot's own package", "jobset": "JobSet's own description"}


class _Dumper(yaml.SafeDumper):
    pass


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Text of several lines as it is, where YAML allows that."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def written(documents: Sequence[Any], engine: str) -> str:
    """The documents as one file, which says what it is."""
    tested = f"its form is tested against {_MODELS[engine]}, this file was neither checked nor run"
    head = f"# Made by ./inv export --to {engine}; {tested}.\n"
    return head + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
