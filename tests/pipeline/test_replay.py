"""A run done again: what would be different is said before, what was different after, and whether the numbers are the
same."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

import pytest

from dflash import cli_replay
from dflash.errors import DataError, EnvironmentMismatch, UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.pipeline.record import load_record
from dflash.pipeline.restoring import restored
from dflash.pipeline.show import show_record
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
    options: dict[str, Any] = {"plan": plan, "accept": accept, "noise": noise, "wheels": "", "as_json": as_json}
    cli_replay.replay(run=run, host="local", root=str(lab.root), **options)


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
    shown = io.StringIO()
    show_record(again, "", shown)
    assert f"replay of {told['run']}: bit-identical: 7 rows of metrics and 2 files" in shown.getvalue()

    (short.root / "corpus.txt").write_text("one\nzwei\nthree\n")
    with pytest.raises(EnvironmentMismatch, match=r"can not be replayed there: data\.target\.corpus\.txt") as refused:
        replay(short, plan=True)
    assert "step target reads other data: corpus.txt, from line 2 on" in refused.value.what
    replay(short, "data", plan=True)
    assert "data.target.corpus.txt" in capsys.readouterr().out
    assert len(short.runs()) == 2


def test_a_run_that_can_not_be_done_again_says_why(ran: Lab):
    (run,) = ran.runs()
    told = json.loads((run / "source.json").read_text())
    (run / "source.json").write_text(json.dumps({**told, "commit": "0" * 40, "remote": None}))
    with pytest.raises(UsageError, match=r"commit 000000000000, which run .* was of, is not in this repository"):
        replay(ran, plan=True)
    (run / "source.json").write_text(json.dumps({**told, "commit": None}))
    with pytest.raises(UsageError, match="was of a source that no commit names"):
        replay(ran, plan=True)
    (run / "source.json").unlink()
    with pytest.raises(UsageError, match="is from before runs kept their source"):
        replay(ran, plan=True)
    with pytest.raises(UsageError, match=r"a number of replays is at least 0"):
        replay(ran, noise=-1)


def test_a_patch_that_fits_no_commit_or_gives_another_source_is_never_run(ran: Lab):
    (run,) = ran.runs()
    told = json.loads((run / "source.json").read_text())
    patch = b"diff --git a/no b/no\n--- a/no\n+++ b/no\n@@ -1 +1 @@\n-a\n+b\n"
    (run / "source.patch").write_bytes(patch)
    changed = {**told, "dirty": True, "patch": hashlib.sha256(patch).hexdigest()}
    (run / "source.json").write_text(json.dumps(changed))
    with pytest.raises(DataError, match=r"its source\.patch does not fit its commit: .*git apply"), restored(run):
        pass
    (run / "source.patch").unlink()
    (run / "source.json").write_text(json.dumps({**told, "dirty": False, "patch": None, "digest": "0" * 16}))
    with pytest.raises(DataError, match=r"give the source [0-9a-f]{16}, not 0{16}, which ran"), restored(run):
        pass
