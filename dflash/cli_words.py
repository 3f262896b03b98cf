"""The words of a command line as Invoke has them."""

from __future__ import annotations

from collections.abc import Sequence

from invoke.collection import Collection

_OPTIONAL = {"show": "run", "report": "run", "resume": "run", "rm": "run", "build": "name", "env.verify": "name"}
"""Verbs whose word may be left out, and the option that it is short for."""

_SEVERAL = {"rm"}
"""Those of which more words are the same."""


def as_invoke_has_them(words: Sequence[str], verbs: Collection | None) -> list[str]:
    """Invoke has no optional positional, so `show --json RUN` becomes `show --json --run=RUN`; and it takes a `--help`
    behind a verb that has positionals for one of them."""
    verb, *rest = words or [""]
    if verbs is None or verb not in verbs.task_names:
        return list(words)
    own = rest[: rest.index("--")] if "--" in rest else rest
    if {"--help", "-h"} & set(own):
        return ["--help", verb]
    valued = {f"--{name}" for each in verbs[verb].get_arguments() if each.takes_value for name in each.names}
    option = _OPTIONAL.get(verb)
    for place, (before, word) in enumerate(zip([verb, *own], own, strict=False)):
        if option and not word.startswith("-") and before not in valued:
            rest[place] = f"--{option}={word}"
            option = option if verb in _SEVERAL else None
    return [verb, *rest]
