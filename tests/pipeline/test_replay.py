"""A run done again: what would be different is said before, what was different after, and whether the numbers are the
same."""

from __future__ import annotations

import json

import pytest

from dflash import cli_replay
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.pipeline.record import load_record
from tests.pipeline.lab import Lab

SHORT = """\
name: short
steps:
  - name: target
    uses: target
    with: {corpus: corpus.txt}
  - name: train
    uses: train
    needs: [target]
"""


@pytest.fixture
def short(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A run that has ended, and a host that is this machine with a root of its own."""
    lab.file.write_text(SHORT)
    (lab.root / "corpus.txt").write_text("one\ntwo\nthree\n")
    monkeypatch.chdir(lab.root)
    there = Host("there", parse_chain("local"), str(lab.root / "far"))
    monkeypatch.setattr("dflash.hosts.inventory.find_host", lambda name, file: there)
    return lab


def replay(lab: Lab, *accept: str, plan: bool = False, noise: int = 0, as_json: bool = False) -> None:
    run = next(each.name for each in lab.runs())
    options = {"plan": plan, "accept": accept, "noise": noise, "wheels": "", "as_json": as_json}
    cli_replay.replay(run=run, host="there", root=str(lab.root), **options)


def test_a_replay_on_a_second_host_is_bit_identical_and_says_so_in_its_record(
    short: Lab, capsys: pytest.CaptureFixture[str]
):
    assert short.run("train.steps=7").exit_code == 0
    replay(short, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["differences"] == []
    assert (told["verdict"]["kind"], told["verdict"]["rows"], told["verdict"]["files"]) == ("bit-identical", 7, 2)
    again = load_record(short.root, told["replay"])
    assert (again["status"], again["host"], again["replay"]["of"]) == ("ok", "there", told["run"])
    assert again["replay"]["verdict"] == {k: v for k, v in told["verdict"].items() if k != "said"}
    assert again["provenance"]["predecessor"] == {"run": told["run"], "how": "replayed"}
    assert [step["status"] for step in again["steps"]] == ["ok", "ok"]
    assert (short.root / "far" / "runs" / told["replay"]).is_dir()
