"""Nothing is sent to another machine that shows a run's secret."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from dflash.errors import UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.pipeline.away import Order, prepare
from dflash.pipeline.keys import HOME
from dflash.pipeline.launching import launch
from dflash.pipeline.source import snapshot
from tests.pipeline.checkout import checkout_in, commit
from tests.pipeline.lab import SAMPLE_KINDS, Lab

SECRET = "hunter22/öäü"
PUSH = "name: push\nsteps:\n  - {name: push, uses: work, secrets: [HF_TOKEN]}\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return checkout_in(tmp_path / "project")


def order(lab: Lab, source: Any) -> Order:
    there = Host("there", parse_chain("local"), str(lab.root / "far"))
    return Order(lab.load(), (), there, HOME / "envs" / "local", kinds=SAMPLE_KINDS, source=source)


@pytest.mark.parametrize("value", [SECRET, ""])
def test_source_that_shows_a_secret_is_not_sent_committed_or_not(
    lab: Lab, checkout: Path, monkeypatch: pytest.MonkeyPatch, value: str
):
    monkeypatch.setenv("HF_TOKEN", value)
    lab.file.write_text(PUSH)
    (checkout / "dflash" / "one.py").write_text(f"HF_TOKEN = '{SECRET}'\n")
    commit(checkout)
    sent = order(lab, snapshot(checkout))
    with reach(sent.host.chain) as connection:
        for looks_only in (True, False):
            with pytest.raises(UsageError, match=r"HF_TOKEN is .*in dflash/one\.py:1, which would be sent"):
                prepare(connection, sent, looks_only=looks_only)
    assert not (lab.root / "far").exists()


def test_an_input_that_holds_a_secret_is_not_sent_whatever_git_says_of_it(
    lab: Lab, checkout: Path, monkeypatch: pytest.MonkeyPatch
):
    secret = token_hex(12)
    monkeypatch.setenv("HF_TOKEN", secret)
    (lab.root / "rows").mkdir()
    (lab.root / "rows" / "b.jsonl").write_text(f'{{"login": "{secret}"}}\n')
    pattern = f"{os.path.relpath(lab.root, HOME)}/rows/*"
    lab.file.write_text(f"{PUSH}  - {{name: read, uses: work, inputs: ['{pattern}']}}\n")
    sent = order(lab, snapshot(checkout))
    refused = pytest.raises(
        UsageError, match=r"^secret HF_TOKEN is in \S*/rows/b\.jsonl, which would be sent as an input"
    )
    with reach(sent.host.chain) as connection, refused:
        prepare(connection, sent)
    assert not (lab.root / "far").exists()
    assert lab.run().exit_code == 0  # here it stays where it is
    lab.file.write_text(lab.file.read_text().replace("name: read,", "name: read, host: gpu1,"))
    (lab.root / "hosts.yaml").write_text("hosts:\n  gpu1: {chain: local, root: /nowhere}\n")
    with refused:
        lab.run()


def test_a_patch_of_a_run_before_that_shows_a_secret_is_not_recorded_again(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    secret = token_hex(12)
    monkeypatch.setenv("HF_TOKEN", secret)
    lab.file.write_text(PUSH)
    content, made = snapshot()
    sent = order(lab, (content, replace(made, patch=f"-token = '{secret}'\n".encode())))
    with reach(sent.host.chain) as connection:
        ready = prepare(connection, replace(sent, check=lambda *_: None))
        with pytest.raises(UsageError, match=r"HF_TOKEN is in source\.patch:1, which would be recorded"):
            launch(connection, ready, lab.root)
    assert not (lab.root / "runs").exists()


def test_of_a_secret_that_is_not_set_there_is_one_line_however_many_steps_name_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("A_TOKEN", "abc")
    more = "".join(f"  - {{name: s{n}, uses: work, with: {{label: '{n}'}}, secrets: [HF_TOKEN]}}\n" for n in range(3))
    lab.file.write_text(PUSH.replace("[HF_TOKEN]", "[HF_TOKEN, A_TOKEN]") + more)
    said: list[str] = []
    sent = replace(order(lab, None), check=lambda *_: None)
    with reach(sent.host.chain) as connection, pytest.raises(UsageError, match=r"is not set|has fewer"):
        prepare(connection, sent, said.append)
    assert said == [
        "the secret A_TOKEN has fewer than 4 characters: unless step push is finished there, nothing will start",
        "the secret HF_TOKEN is not set: unless step push and 3 more are finished there, nothing will start",
    ]
