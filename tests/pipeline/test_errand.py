"""What is known here of a run that another machine has."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from dflash.errors import DataError, UsageError
from dflash.hosts import jobs
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.pipeline.answer import plan_of
from dflash.pipeline.errand import Errand, load_errand
from dflash.pipeline.following import follow, stop
from dflash.pipeline.record import new_run
from dflash.pipeline.view import Lines


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """This machine, with a root of its own, as if it were another."""
    return Host("there", parse_chain("local"), str(tmp_path / "far"))


def errand(**more: object) -> Errand:
    made = Errand("r", "lab", "ssh:lab/lxc:7", "/root/x", "j", "local", "0", "/p", "/s", {}, "now", "r")
    return replace(made, **more)  # type: ignore[arg-type]


def test_a_run_of_this_machine_or_none_or_a_damaged_note_is_one_line(tmp_path: Path):
    folder = tmp_path / "runs" / "r"
    with pytest.raises(UsageError, match="there is no run 'r'"):
        load_errand(tmp_path, "r")
    folder.mkdir(parents=True)
    errand().write(folder)
    assert load_errand(tmp_path, "r").where == Host("lab", parse_chain("ssh:lab/lxc:7"), "/root/x")
    whole = json.loads((folder / "remote.json").read_text())
    wrong: list[dict[str, object]] = [{"chain": 7}, {"chain": "x"}, {"request": None}, {"job": None}, {"ended": "x"}]
    for text in ("{", "[]", '{"schema": 1}', '{"schema": 2}', *(json.dumps({**whole, **each}) for each in wrong)):
        (folder / "remote.json").write_text(text)
        with pytest.raises(DataError, match=r"remote\.json"):
            load_errand(tmp_path, "r")
    (folder / "remote.json").unlink()
    (folder / "record.json").write_text("{}")
    with pytest.raises(UsageError, match="run r is one of this machine"):
        load_errand(tmp_path, "r")


def test_a_plan_is_shown_as_it_was_made_there_whatever_kinds_are_known_here():
    step = {"name": "one", "uses": "gone", "describes": "as it was", "needs": ["zero"], "status": "resume"}
    step |= {"why": ["it was started"], "needs_gpu": True, "key": "k", "config": {"gone": [1]}, "fields": {"lock": "l"}}
    made = {"schema": 1, "pipeline": "p", "description": "d", "file": "/tmp/x/p.yaml", "host": "h", "chain": "local"}
    shown = plan_of({**made, "steps": [step]}, "p.yaml", errand().where).as_json()
    step |= {
        "matrix": {},
        "when": "",
        "is_last": False,
        "changes": [],
        "gpus": 1,
        "timeout_s": None,
    }  # as older sources have no such fields
    assert shown == {**made, "file": "p.yaml", "host": "lab", "chain": "ssh:lab/lxc:7", "steps": [step]}


def test_a_job_that_never_started_is_said_so(host: Host):
    away = errand(chain="local", root=host.root, job=jobs.new_id())
    with pytest.raises(UsageError, match=r"^local: run r never started there; \./inv resume r starts it"):
        follow(away, Lines(io.StringIO()))
    with pytest.raises(UsageError, match="run r never started there"):
        stop(away)


def test_a_run_may_be_sent_to_a_root_that_its_sender_has_too(tmp_path: Path):
    folder = new_run(tmp_path, "p")
    with pytest.raises(FileExistsError):
        new_run(tmp_path, "p", folder.name)
    errand().write(folder)
    assert new_run(tmp_path, "p", folder.name) == folder
    (folder / "events.jsonl").touch()
    with pytest.raises(FileExistsError):
        new_run(tmp_path, "p", folder.name)
