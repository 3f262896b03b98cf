"""How the processes of one run share the tests: a file goes to one of them, and all that uses the lab to the same one,
since there is one lab."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

PROJECT = Path(__file__).parents[1]
LAB = "the lab"
LONG = ("training", "tests")
"""Rooms whose files take longest."""


@cache
def share_of(file: str) -> str:
    """What is done by one process with a file of tests, which is named as seen from the project: it alone, or `LAB`."""
    path = PROJECT / file
    texts = [each.read_text() for each in (path, path.parent / "conftest.py") if each.exists()]
    return LAB if any(word in text for text in texts for word in ("tests.lab", "lab_sshd")) else file


def turn_of(file: str) -> int:
    """What takes long comes first, or the end would be one process at a long file and the others idle."""
    if share_of(file) == LAB:
        return 0
    return 1 if Path(file).parent.name in LONG else 2


class Sharing(LoadScopeScheduling):
    """Gives each process the next file when it is through with one, in the order of `turn_of`."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid.split("::")[0])
