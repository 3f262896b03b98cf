"""A run that would write down or send one of its secrets does not begin, and says where the secret is."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from secrets import token_hex

import pytest

from dflash.errors import UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.pipeline import leaks
from dflash.pipeline.away import Order, prepare
from dflash.pipeline.keys import HOME, observe
from dflash.pipeline.plan import make_plan
from dflash.pipeline.run import execute
from dflash.pipeline.schema import load_pipeline
from dflash.pipeline.source import changed, origin, snapshot
from dflash.pipeline.steps import KINDS as STEPS
from dflash.pipeline.store import Store
from dflash.pipeline.view import Lines
from tests.pipeline.lab import SAMPLE_KINDS, Lab

SECRET = "hunter22/öäü"
PUSH = "name: push\nsteps:\n  - {name: push, uses: work, secrets: [HF_TOKEN]}\n"
KEY = """\
-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj
-----END PRIVATE KEY-----
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    home = tmp_path / "project"
    (home / "dflash").mkdir(parents=True)
    (home / "dflash" / "one.py").write_text("one = 1\ntwo = 2\n")
    (home / ".gitignore").write_text("ignored\n")
    git(home, "init", "-q")
    git(home, "add", ".")
    commit(home)
    return home


def git(home: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(home), *words], check=True, capture_output=True)


def commit(home: Path) -> None:
    git(home, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-a", "-m", "one more")


def refuse(home: Path, secret: str = SECRET, without: tuple[Path, ...] = ()) -> None:
    leaks.refuse_in_source({"HF_TOKEN": secret}, changed(home, without), "recorded")


@pytest.mark.parametrize(
    "form", [SECRET, json.dumps(SECRET), base64.b64encode(b"ann:" + SECRET.encode()).decode(), "hunter22%2F%C3%B6"]
)
def test_a_secret_in_a_file_that_nothing_ignores_is_named_with_its_line_whatever_its_form(checkout: Path, form: str):
    form += "%C3%A4%C3%BC" if "%" in form else ""
    (checkout / ".env").write_text(f"A=1\n\nHF_TOKEN={form}\n")
    with pytest.raises(UsageError) as refused:
        refuse(checkout)
    what = "secret HF_TOKEN is in .env:3, which would be recorded with the source; add it to .gitignore or take it out"
    assert str(refused.value) == what
    assert refused.value.exit_code == 2
    refuse(checkout, without=(checkout / ".env",))  # it goes along as data
    (checkout / ".env").rename(checkout / "ignored")
    refuse(checkout)


def test_a_secret_in_a_tracked_file_is_found_when_it_is_added_when_it_goes_and_when_it_only_lies_there(checkout: Path):
    place = checkout / "dflash" / "one.py"
    place.write_text(f"one = 1\ntoken = '{SECRET}'\n")
    with pytest.raises(UsageError, match=r"HF_TOKEN is in dflash/one\.py:2, which would be recorded"):
        refuse(checkout)
    commit(checkout)
    os.utime(place, (1, 1))  # git looks at it again, and finds it as it was
    refuse(checkout)  # the record names the commit, and has nothing of it
    with pytest.raises(UsageError, match=r"is in dflash/one\.py:2, which would be sent with the source"):
        leaks.refuse_in_source({"HF_TOKEN": SECRET}, leaks.packed(snapshot(checkout)[0]), "sent")
    place.unlink()
    gone = r"is in dflash/one\.py \(as it was committed\):2, which would be recorded .*; commit what takes it out"
    with pytest.raises(UsageError, match=gone):
        refuse(checkout)
    commit(checkout)
    refuse(checkout)


@pytest.mark.parametrize("how", ["--skip-worktree", "--assume-unchanged"])
def test_a_change_that_git_was_told_to_overlook_is_not_overlooked(checkout: Path, how: str):
    git(checkout, "update-index", how, "dflash/one.py")
    (checkout / "dflash" / "one.py").write_text(f"token = '{SECRET}'\n")
    with pytest.raises(UsageError, match=r"HF_TOKEN is in dflash/one\.py:1, which would be recorded"):
        refuse(checkout)


def test_where_a_link_leads_what_a_file_is_called_and_a_file_of_bytes_are_looked_at(checkout: Path):
    (checkout / "link").symlink_to("to-hunter22-secret")
    with pytest.raises(UsageError, match=r"is in link:1,"):
        refuse(checkout, "hunter22-secret")
    (checkout / "link").unlink()
    (checkout / "of-hunter22-secret").touch()
    with pytest.raises(UsageError, match=r"HF_TOKEN is in a file's name, which") as refused:
        refuse(checkout, "hunter22-secret")
    assert "hunter22" not in str(refused.value)
    (checkout / "of-hunter22-secret").unlink()
    (checkout / "weights.bin").write_bytes(bytes(1000) + b"hunter22-secret" + bytes(1000))
    with pytest.raises(UsageError, match=r"is in weights\.bin:1,"):
        refuse(checkout, "hunter22-secret")


def test_what_any_file_may_hold_by_chance_is_no_secret(checkout: Path):
    (checkout / "notes").write_text("-----BEGIN PRIVATE KEY-----\n{\n  YWJj 123\n}\n")
    refuse(checkout, KEY)
    refuse(checkout, '{\n  "type": "account",\n  "key": "a-longer-one-than-all-others"\n}')
    (checkout / "words").write_text("an event\n")
    refuse(checkout, "event")
    (checkout / "notes").write_text("key: |\n" + "".join(f"  {line}\n" for line in KEY.splitlines()))
    with pytest.raises(UsageError, match=r"is in notes:3,"):
        refuse(checkout, KEY)


def test_without_secrets_nothing_is_read(checkout: Path):
    def read() -> object:
        raise AssertionError("somebody has looked")
        yield

    leaks.refuse_in_source({}, read(), "recorded")  # type: ignore[arg-type]


def test_a_run_that_would_record_its_secret_is_refused_before_anything_is_written(
    lab: Lab, checkout: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    lab.file.write_text(PUSH)
    (checkout / ".env").write_text(f"HF_TOKEN={SECRET}\n")
    monkeypatch.setattr("dflash.pipeline.run.origin", partial(origin, checkout))
    monkeypatch.setattr("dflash.pipeline.leaks.changed", partial(changed, checkout))
    with pytest.raises(UsageError, match=r"^secret HF_TOKEN is in \.env:1, which would be recorded with the source"):
        lab.run()
    assert not (lab.root / "runs").exists()
    monkeypatch.setenv("HF_TOKEN", "another one")
    assert lab.run().exit_code == 0
    assert (lab.runs()[0] / "source.patch").exists()


@pytest.mark.parametrize(
    ("text", "override", "where"),
    [
        (f"{PUSH}    # {SECRET}\n", "", r"pipeline\.yaml:4"),
        (PUSH, f"push.label={SECRET}", r"--set push\.label=…"),
        (PUSH.replace("work,", 'work, with: {label: "hunter22/\\xf6\\u00e4\\xfc"},'), "", "the settings of step push"),
    ],
)
def test_a_secret_in_what_is_asked_for_is_named_and_not_shown(
    text: str, override: str, where: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    lab.file.write_text(text)
    with pytest.raises(UsageError, match=rf"HF_TOKEN is in (\S*/)?{where}, which the run's record would") as refused:
        lab.run(*filter(None, [override]))
    assert SECRET not in str(refused.value)
    assert not (lab.root / "runs").exists()


def test_a_secret_on_the_command_line_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setattr(sys, "argv", ["inv", "train", "--root", f"/tmp/{SECRET}"])
    lab.file.write_text(PUSH)
    with pytest.raises(UsageError, match=r"^secret HF_TOKEN is in the command line, which"):
        lab.run()


def test_source_that_shows_a_secret_is_not_sent_committed_or_not(
    lab: Lab, checkout: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    lab.file.write_text(PUSH)
    (checkout / "dflash" / "one.py").write_text(f"token = '{SECRET}'\n")
    commit(checkout)
    there = Host("there", parse_chain("local"), str(lab.root / "far"))
    order = Order(lab.load(), (), there, HOME / "envs" / "local", kinds=SAMPLE_KINDS, source=snapshot(checkout))
    with reach(there.chain) as connection:
        for looks_only in (True, False):
            with pytest.raises(UsageError, match=r"HF_TOKEN is in dflash/one\.py:1, which would be sent"):
                prepare(connection, order, looks_only=looks_only)
    assert not (lab.root / "far").exists()


# --- what a step makes


KEEP = """\
name: keep
steps:
  - name: keep
    uses: command
    secrets: [HF_TOKEN]
    with: {argv: [sh, -c, 'mkdir of; echo "login = $HF_TOKEN" > of/rc; echo "$HF_TOKEN" | base64 > b; echo x > c']}
"""


def test_a_secret_in_what_a_step_made_is_told_and_the_step_is_finished(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    secret = token_hex(12)
    monkeypatch.setenv("HF_TOKEN", secret)
    lab.file.write_text(KEEP)
    pipeline = load_pipeline(lab.file, STEPS)
    here, said = Host("local", parse_chain("local")), io.StringIO()
    outcome = execute(make_plan(pipeline, here, observe(pipeline), Store(lab.root)), lab.root, Lines(said))
    assert outcome.exit_code == 0
    note = "its output b holds the secret HF_TOKEN, and 1 more do: whoever gets it can read that"
    assert note in said.getvalue()
    assert note in (lab.runs()[0] / "events.jsonl").read_text()
    files = [path for path in (lab.root / "runs").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secret.encode() in path.read_bytes()]  # nothing quotes what it made


@pytest.mark.parametrize("before", [0, 1, (1 << 20) - 5, (2 << 20) - 5])
def test_a_secret_is_found_wherever_a_file_is_cut(before: int, tmp_path: Path):
    (tmp_path / "made").write_bytes(bytes(before) + SECRET.encode() + bytes(1 << 20))
    assert len([*leaks.notes_of_outputs({"A": "another one", "HF_TOKEN": SECRET}, tmp_path)]) == 1
    assert [*leaks.notes_of_outputs({"HF_TOKEN": "another one"}, tmp_path)] == []
    assert [*leaks.notes_of_outputs({"HF_TOKEN": "short"}, tmp_path)] == []
    assert [*leaks.notes_of_outputs({}, tmp_path / "not there")] == []
