"""A run done again: what would be different is said before, what was different after, and whether the numbers are the
same."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from dflash import cli_replay, cli_train
from dflash.compilation.signing import Signer
from dflash.compilation.vault import Vault
from dflash.errors import Diverged, EnvironmentMismatch, UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.pipeline.away import Ready
from dflash.pipeline.judging import judge, made_by
from dflash.pipeline.plan import Plan
from dflash.pipeline.record import load_record
from dflash.pipeline.replay import replay_of, send_caches
from dflash.pipeline.restoring import Restored
from dflash.pipeline.schema import Pipeline
from dflash.pipeline.show import show_record
from dflash.pipeline.source import Origin
from tests.compilation.caches import fill
from tests.pipeline.lab import Lab

SHORT = """\
name: short
steps:
  - name: target
    uses: target
    secrets: [HF_LOGIN]
    with: {corpus: corpus.txt}
  - name: train
    uses: train
    needs: [target]
  - name: large
    uses: target
    when: host.gpus > 8
"""


@pytest.fixture
def short(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A run that has ended, and a host that is this machine with a root of its own."""
    lab.file.write_text(SHORT)
    (lab.root / "corpus.txt").write_text("one\ntwo\nthree\n")
    monkeypatch.chdir(lab.root)
    monkeypatch.setenv("HF_LOGIN", token_hex(8))  # this file is source, which may show no secret
    there = Host("there", parse_chain("local"), str(lab.root / "far"))
    monkeypatch.setattr("dflash.hosts.inventory.find_host", lambda name, file: there)
    return lab


def replay(lab: Lab, *accept: str, plan: bool = False, noise: int = 0, as_json: bool = False) -> None:
    run = next(each.name for each in lab.runs())
    options: dict[str, Any] = {"plan": plan, "accept": accept, "noise": noise, "wheels": "", "as_json": as_json}
    cli_replay.replay(run=run, host="local", root=str(lab.root), **options)


def test_a_replay_on_a_second_host_is_bit_identical_and_says_so_in_its_record(
    short: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
    assert [step["status"] for step in again["steps"]] == ["ok", "ok", "left out"]
    assert (short.root / "far" / "runs" / told["replay"]).is_dir()
    shown = io.StringIO()
    show_record(again, "", shown)
    assert f"replay of {told['run']}: bit-identical: 7 rows of metrics and 2 files" in shown.getvalue()

    record = short.root / "runs" / told["replay"] / "record.json"
    record.write_text(json.dumps({name: value for name, value in again.items() if name != "replay"}))
    looked_at(short, told["replay"])  # whoever follows it to its end, days later perhaps, has the verdict, too
    assert load_record(short.root, told["replay"])["replay"] == again["replay"]
    first = short.root / "runs" / told["run"]
    first.rename(short.root / "moved")
    looked_at(short, told["replay"])
    assert "is not judged: " in capsys.readouterr().err
    assert load_record(short.root, told["replay"])["replay"] == again["replay"]
    (short.root / "moved").rename(first)

    monkeypatch.chdir("/")
    replay(short, plan=True)  # its relative paths begin where the run was started, and a secret is none of its fields
    assert ", 0 are not" in capsys.readouterr().out
    (short.root / "corpus.txt").unlink()
    with pytest.raises(EnvironmentMismatch, match=r"can not be replayed there: data\.target\.corpus\.txt"):
        replay(short, plan=True)
    (short.root / "corpus.txt").write_text("one\nzwei\nthree\n")
    with pytest.raises(EnvironmentMismatch, match=r"can not be replayed there: data\.target\.corpus\.txt") as refused:
        replay(short, plan=True)
    assert "step target reads other data: corpus.txt, from line 2 on" in refused.value.what
    capsys.readouterr()
    replay(short, "data", plan=True)
    assert "data.target.corpus.txt" in capsys.readouterr().out
    assert len(short.runs()) == 2


def test_a_replay_that_is_another_or_can_not_be_compared_says_what_to_do_next(short: Lab):
    assert short.run().exit_code == 0
    (first,) = short.runs()
    record = json.loads((first / "record.json").read_text())
    record["provenance"]["artifacts"]["target"]["text.txt"]["sha256"] = "0" * 64
    (first / "record.json").write_text(json.dumps(record))
    with pytest.raises(Diverged, match=r"target/text\.txt is another") as told:
        replay(short)
    again = short.runs()[1].name
    assert str(told.value.cure).startswith(f"./inv compare {first.name} {again} shows both; --noise 1 ")

    shutil.rmtree(short.root / "runs")
    short.file.write_text("name: quiet\nsteps:\n  - {name: check, uses: check}\n")
    assert short.run().exit_code == 0
    with pytest.raises(Diverged, match="neither of the runs made a file") as told:
        replay(short)
    assert str(told.value.cure).startswith("have a step leave what it finds in a file")


def test_what_is_accepted_must_be_a_field_or_the_beginning_of_some(short: Lab):
    assert short.run().exit_code == 0
    for field in ("config", "config.steps.train", "gpus.driver", "data.target.that.only.the.host.has", "seeds"):
        replay(short, field, plan=True)
    with pytest.raises(UsageError) as told:
        replay(short, "nofield", plan=True)
    assert str(told.value).startswith("--accept: 'nofield' is no field that is compared; known ones, each with")
    for typed, meant in (
        ("gpus.drivr", "gpus.driver"),
        ("config.step", "config.steps"),
        ("data.target.", "data.target"),
        ("artifacts", ""),
    ):
        with pytest.raises(UsageError, match=f"did you mean '{meant}'" if meant else "known ones"):
            replay(short, typed, plan=True)
    assert len(short.runs()) == 1


def looked_at(lab: Lab, run: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli_train.follow(run=run, root=str(lab.root), offset=0)


HERE, AWAY = Host("here", parse_chain("local")), Host("gpu1", parse_chain("ssh:gpu1"))


def changed(record: dict[str, Any], **parts: dict[str, Any]) -> dict[str, Any]:
    made = record["provenance"]
    return {**record, "provenance": {**made, **{name: {**made[name], **values} for name, values in parts.items()}}}


def test_of_a_run_that_was_sent_what_was_typed_is_kept_and_what_sending_added_is_not(ran: Lab, tmp_path: Path):
    (run,) = ran.runs()
    typed = ["train.steps=5", "target.corpus=my/data/corpus.txt"]
    moved = 'target.corpus="/root/.dflash/data/0a4abdf3c8d67a83/corpus.txt"'
    record = changed(load_record(ran.root), config={"overrides": [*typed, moved]})
    source = Restored(tmp_path / "source", b"", Origin(None))
    source.folder.mkdir()
    assert list(replay_of(record, run, source, HERE).pipeline.overrides) == typed


def test_a_run_of_which_too_little_is_known_is_told_apart_from_one_that_is_on_its_way(ran: Lab, tmp_path: Path):
    (run,) = ran.runs()
    record, source = load_record(ran.root), Restored(tmp_path, b"", Origin(None))
    for name in ("mine", "../..", None):
        with pytest.raises(EnvironmentMismatch, match=r"that its source does not declare"):
            replay_of(changed(record, environment={"name": name}), run, source, AWAY)
    del record["provenance"]
    with pytest.raises(UsageError, match="is from before runs recorded what they were made from, or ended before"):
        replay_of(record, run, source, HERE)
    (run / "remote.json").write_text(json.dumps({"ended": None}))
    with pytest.raises(UsageError, match=rf"has not come home yet; \./inv follow {run.name} brings it"):
        replay_of(record, run, source, HERE)


def test_rows_that_a_later_run_wrote_are_not_taken_for_the_runs_nor_damaged_ones_for_a_verdict(ran: Lab):
    (run,) = ran.runs()
    for name in ("again", "damaged"):
        shutil.copytree(run, run.with_name(name))
        record = json.loads((run / "record.json").read_text())
        train = next(each for each in record["steps"] if each["kind"] == "train")
        shutil.copytree(ran.root / train["folder"], ran.root / "work" / "train" / name)
        train["folder"] = f"work/train/{name}"
        told = {"of": run.name, "accepted": []}
        (run.with_name(name) / "record.json").write_text(json.dumps({**record, "id": name, "replay": told}))
    (run.with_name("damaged") / "metrics.jsonl").write_text('{"step": 0\0\n{"step": 1}\n')
    verdict, _ = judge(ran.root, "again", run.name, ())
    assert (verdict.kind, verdict.rows) == ("bit-identical", 5)

    rows = ran.folder("train") / "metrics.jsonl"
    rows.write_text(rows.read_text().replace("5.0", "4.0", 1))
    assert made_by(ran.root, load_record(ran.root, run.name)).rows == {}
    record = changed(load_record(ran.root, "again"), artifacts={"target": {}, "train": {}, "evaluate": {}})
    (run.with_name("again") / "record.json").write_text(json.dumps(record))
    verdict, _ = judge(ran.root, "again", run.name, ())
    assert str(verdict) == (
        "not comparable: the metrics of step train are those of a later run now, which made it again in the same folder"
    )


def test_what_a_run_had_compiled_is_sent_where_the_vault_there_has_it_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    Signer(tmp_path / "key").sign(b"")
    monkeypatch.setenv("DFLASH_VAULT_KEY", str(tmp_path / "key"))
    monkeypatch.delenv("DFLASH_VAULT", raising=False)
    vault, host = Vault(tmp_path / "vault"), Host("there", parse_chain("local"), str(tmp_path / "far"))
    made = vault.save(fill(tmp_path / "cache"), {"torch": "2"}, {}, 3).id
    origin = Origin(None)
    ready = Ready(host, "", "", sys.executable, "", origin, {}, Plan(Pipeline("p", "", "f", ()), host, ()), None)
    told: list[str] = []
    with reach(host.chain) as connection:
        for _ in range(2):
            send_caches(connection, ready, [made, "f" * 16], vault, told.append)
    anew = "what the run had compiled is compiled anew, and may give other bits: "
    assert [line.partition(anew)[1] or line for line in told] == [
        f"sent the compile cache {made}, which the run used",
        anew,
        anew,
    ]
    assert [each.id for each in Vault(tmp_path / "far" / "vault").listed()] == [made]


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
