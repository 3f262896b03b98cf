"""Records what a machine answers to every fact, in the shape of tests/data/machines:

    python -m dflash.provision.recording CHAIN >tests/data/machines/NAME.yaml

Standard library and PyYAML alone, for the `local` chain: it runs on a GPU machine that has no more. What it prints
names the machine's processes and disks: read it before it is kept.
"""

from __future__ import annotations

import sys
from typing import Any

import yaml

from dflash.errors import DFlashError
from dflash.hosts.chain import parse_chain
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Facts
from dflash.provision.look import look, opened


class _Dumper(yaml.SafeDumper):
    """Text of several lines is written as it is seen, where YAML can."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def outputs_of(known: Facts) -> dict[str, dict[str, Any]]:
    """By a fact's name, its output; empty streams and a status of 0 are left out."""
    return {
        fact.name: {key: value for key, value in vars(output).items() if value}
        for fact, output in known.outputs.items()
    }


def record(chain: str) -> str:
    """The answers of a machine as YAML: `host`, and `inside` where that is another. Raises HostError, ChainError."""
    parsed = parse_chain(chain)
    with opened(parsed) as way:
        if way.failure:
            raise way.failure
        found = look(way, Wanted(container=parsed.container))
    document = {"host": outputs_of(found.host)}
    if found.inside is not None and found.inside is not found.host:
        document["inside"] = outputs_of(found.inside)
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)


def main() -> int:
    """`CHAIN`."""
    if len(sys.argv) != 2:
        print("usage: python -m dflash.provision.recording CHAIN", file=sys.stderr)
        return 2
    try:
        sys.stdout.write(record(sys.argv[1]))
    except DFlashError as failure:
        print(f"error: {failure}", file=sys.stderr)
        return failure.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
