"""What a step makes is searched for its secrets once it is made."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.pipeline import leaks
from dflash.pipeline.keys import observe
from dflash.pipeline.plan import make_plan
from dflash.pipeline.run import Outcome, execute
from dflash.pipeline.schema import load_pipeline
from dflash.pipeline.steps import KINDS as STEPS
from dflash.pipeline.store import Store
from dflash.pipeline.view import Lines
from tests.pipeline.lab import Lab

SECRET = "hunter22/öäü"


KEEP = """\
name: keep
steps:
  - name: keep
    uses: command
    secrets: [HF_TOKEN]
    with: {argv: [sh, -c, 'mkdir of; echo "login = $HF_TOKEN" > of/rc; echo "$HF_TOKEN" | base64 > b; echo x > c']}
"""


def run(lab: Lab, said: io.StringIO) -> Outcome:
    pipeline = load_pipeline(lab.file, STEPS)
    here = Host("local", parse_chain("local"))
    return execute(make_plan(pipeline, here, observe(pipeline), Store(lab.root)), lab.root, Lines(said))


def test_a_secret_in_what_a_step_made_is_told_and_the_step_is_finished(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    secret = token_hex(12)
    monkeypatch.setenv("HF_TOKEN", secret)
    lab.file.write_text(KEEP)
    said = io.StringIO()
    assert run(lab, said).exit_code == 0
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


@pytest.mark.parametrize(
    ("length", "name"),
    [(12, "of/$HF_TOKEN.txt"), (12, "$(echo $HF_TOKEN | base64)"), (3, "a-$HF_TOKEN")],
)
def test_a_step_that_calls_a_file_by_its_secret_fails_and_no_record_has_the_name(
    length: int, name: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    secret = token_hex(length)  # of six letters no form but itself is looked for
    monkeypatch.setenv("HF_TOKEN", secret)
    lab.file.write_text(KEEP.split("mkdir")[0] + f'mkdir of; echo x > "{name}"\']}}\n')
    outcome = run(lab, io.StringIO())
    assert (outcome.exit_code, outcome.record["status"]) == (1, "failed")
    assert "step keep: an output is called by secret HF_TOKEN; " in str(outcome.failure)
    assert not [*(lab.root / "work").rglob("done.json")]
    files = [path for path in (lab.root / "runs").rglob("*") if path.is_file()]
    assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_what_takes_too_long_to_search_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(f"{SECRET} {name}")
    secrets, size = {"HF_TOKEN": SECRET}, (tmp_path / "a").stat().st_size
    (said,) = leaks.notes_of_outputs(secrets, tmp_path)
    assert "a holds the secret HF_TOKEN, and 2 more do" in said
    monkeypatch.setattr(leaks, "MOST_IN_ALL", 2 * size)
    (said,) = leaks.notes_of_outputs(secrets, tmp_path)
    assert "and 1 more do" in said
    assert [*leaks.notes_of_outputs(secrets, tmp_path, lambda: True)] == []


def test_a_stop_ends_the_search_and_what_was_made_is_finished(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", token_hex(12))
    lab.file.write_text(KEEP)
    search = leaks._in_file

    def stopped(*words: Any) -> list[str]:
        os.kill(os.getpid(), signal.SIGINT)
        return search(*words)

    monkeypatch.setattr(leaks, "_in_file", stopped)
    said = io.StringIO()
    assert [step["status"] for step in run(lab, said).record["steps"]] == ["ok"]
    assert "holds the secret" not in said.getvalue()
    assert [*(lab.root / "work").rglob("done.json")]
