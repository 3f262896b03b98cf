"""hosts.yaml: the machines a team knows by name.

gpu1:
  chain: ssh:root@gpu1/pct:200
  root: /root/dflash
  gpus: 8
  labels: [h200]
  machine: {...}            # what it must have: dflash/provision/declaration.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from dflash.document import load
from dflash.errors import ChainError, UsageError
from dflash.hosts.chain import FORMS, Chain, looks_like_chain, parse_chain
from dflash.validation import suggestion, validated

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
"""What the name of a host is made of."""

DEFAULT_ROOT = "~/.dflash"
"""Where this project keeps its own on a host that names no root."""


@dataclass(frozen=True)
class Host:
    """A machine: how to reach it, and what a person says it has. `root` None: the project's default."""

    name: str
    chain: Chain
    root: str | None = None
    gpus: int = 0
    labels: tuple[str, ...] = ()


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"must be an absolute path, not {path!r}")
    if ":" in path:
        raise ValueError(f"can not have a ':', which ends a path in PYTHONPATH, as {path!r} has")
    return path


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    chain: str
    root: Annotated[str, AfterValidator(_absolute)] | None = None
    gpus: Annotated[int, Field(ge=0)] = 0
    labels: list[str] = []
    machine: dict[str, Any] = {}  # others read it; here it may be anything


def load_inventory(file: str | Path) -> dict[str, Host]:
    """Every host of `file` by name. Raises ConfigError with line and column, or StorageError."""
    document = load(file)
    if not isinstance(document.data, dict):
        raise document.error("an inventory is a map from names to hosts")
    hosts: dict[str, Host] = {}
    for name in document.data:
        if not re.fullmatch(NAME, name, re.ASCII) or name in FORMS:
            rule = "a host's name is made of letters, digits, '.', '_' and '-', and is not a hop's name"
            raise document.error(f"{name!r} can not name a host: {rule}", (name,), key=True)
        entry: _Entry = validated(_Entry, document, (name,))
        try:
            chain = parse_chain(entry.chain)
        except ChainError as failure:
            what = f"{failure.where}: {failure.what}" if failure.where else failure.what
            raise document.error(what, (name, "chain"), cure=failure.cure) from None
        hosts[name] = Host(name, chain, entry.root, entry.gpus, tuple(entry.labels))
    return hosts


def find_host(text: str, file: str | Path) -> Host:
    """The host that `--host TEXT` means: a chain as it is, or a name of the inventory in `file`.

    Raises ChainError, ConfigError, or UsageError for a name that is not there.
    """
    if looks_like_chain(text) or not text:
        return Host(text, parse_chain(text))
    if not Path(file).exists():
        cure = "give a chain such as local or ssh:root@gpu1, or copy hosts.example.yaml to hosts.yaml"
        raise UsageError(f"{text!r} is a name, and there is no inventory", where=str(file), cure=cure)
    hosts = load_inventory(file)
    if text not in hosts:
        raise UsageError(f"there is no host {text!r}", where=str(file), cure=suggestion(text, hosts, "hosts"))
    return hosts[text]
