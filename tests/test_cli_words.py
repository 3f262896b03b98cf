"""Words in the order in which a person types them, as Invoke can follow them."""

from __future__ import annotations

import pytest

import tasks
from dflash.cli_words import as_invoke_has_them


@pytest.mark.parametrize(
    ("typed", "followed"),
    [
        ("show ID", "show --run=ID"),
        ("show --json ID", "show --json --run=ID"),
        ("show --root R ID", "show --root R --run=ID"),
        ("show --root=R ID --json", "show --root=R --run=ID --json"),
        ("report --out F ID", "report --out F --run=ID"),
        ("resume --wait ID", "resume --wait --run=ID"),
        ("rm --plan A --root R B C", "rm --plan --run=A --root R --run=B --run=C"),
        ("show A B", "show --run=A B"),
        ("env.verify --quick local", "env.verify --quick --name=local"),
        ("build --check train", "build --check --name=train"),
        ("replay --plan ID", "replay --plan ID"),
        ("compare A B --help", "--help compare"),
        ("replay -h", "--help replay"),
        ("exec --host H -- ls --help", "exec --host H -- ls --help"),
        ("--help show", "--help show"),
        ("env --quick local", "env --quick local"),
        ("", ""),
    ],
)
def test_a_word_may_stand_before_or_behind_an_option(typed: str, followed: str):
    assert as_invoke_has_them(typed.split(), tasks.namespace) == followed.split()
