"""Where a step runs, and how its workers are started, as declared."""

from __future__ import annotations

import re
from typing import Any

from dflash.document import Document, Place
from dflash.errors import ChainError
from dflash.hosts.chain import looks_like_chain, parse_chain
from dflash.hosts.inventory import NAME
from dflash.pipeline.declaration import Declared
from dflash.pipeline.kinds import StepKind
from dflash.pipeline.launchers.config import LAUNCHERS
from dflash.validation import suggestion, validated


def host_of(value: Any, document: Document, place: Place) -> str | None:
    """A step's host: a name as the inventory may have it, or a chain. Whether it is there is not asked.

    Raises ConfigError.
    """
    if value is None:
        return None
    text = str(value)
    if looks_like_chain(text):
        try:
            parse_chain(text)
        except ChainError as failure:
            what = f"{failure.where}: {failure.what}" if failure.where else failure.what
            raise document.error(what, place, cure=failure.cure) from None
    elif not re.fullmatch(NAME, text, re.ASCII):
        cure = "write a name of hosts.yaml, or a chain such as ssh:root@gpu1/pct:200"
        raise document.error(f"{text!r} names no host", place, cure=cure)
    return text


def launcher_of(value: Any, kind: StepKind, step: Declared, document: Document) -> Any:
    """How a step's workers are started: one of LAUNCHERS, or None where nothing is declared. Raises ConfigError."""
    if value is None:
        return None
    place: Place = (*step.place, "launcher")
    if not kind.launches:
        what = f"a step of kind {kind.name!r} has no workers to start"
        raise document.error(what, place, key=True, cure="give the launcher to the step that trains")
    if isinstance(value, dict):
        options = {key: each for key, each in value.items() if key != "kind"}
        name, where = value.get("kind"), (*place, "kind")
    else:
        options, name, where = {}, value, place
    if not isinstance(name, str) or name not in LAUNCHERS:
        cure = suggestion(str(name or ""), LAUNCHERS, "launchers")
        raise document.error(f"there is no launcher {name!r}" if name else "say its kind", where, cure=cure)
    launcher = validated(LAUNCHERS[name], document, place, options)
    for number, host in enumerate(getattr(launcher, "hosts", ())):
        host_of(host, document, (*place, "hosts", number))
    return launcher
