"""A run's record holds what it was made from, and a step that is skipped what it was made from then."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
from pathlib import Path

import pytest

from dflash.errors import UsageError
from dflash.pipeline.keys import HOME
from dflash.pipeline.provenance import manifest
from dflash.pipeline.provenance.environment import environment
from dflash.pipeline.provenance.lines import kept
from dflash.pipeline.provenance.manifest import begun
from dflash.pipeline.record import Sender, load_record
from dflash.pipeline.request import planned, request_of
from dflash.pipeline.restoring import restored
from dflash.pipeline.run import execute
from dflash.pipeline.source import origin, origin_of
from dflash.pipeline.view import Lines
from tests.pipeline.lab import SAMPLE, SAMPLE_KINDS, Lab

PARTS = {
    "source",
    "environment",
    "libraries",
    "gpus",
    "variables",
    "seeds",
    "config",
    "data",
    "cache",
    "metrics",
    "artifacts",
    "predecessor",
}


def test_a_run_keeps_what_it_was_made_from_and_so_does_the_next_that_skips_all(ran: Lab):
    first = load_record(ran.root)
    assert set(first["provenance"]) == PARTS
    assert ran.run().exit_code == 0
    second = load_record(ran.root)
    assert [step["status"] for step in second["steps"][1:]] == ["skipped"] * 4
    made = {name: second["provenance"][name] for name in ("artifacts", "metrics")}
    assert made == {name: first["provenance"][name] for name in made}
    assert second["provenance"]["libraries"]["train"] == first["provenance"]["libraries"]["train"]
    assert "libc.so.6" in first["provenance"]["libraries"]["train"]
    assert first["provenance"]["variables"]["steps"]["train"]["GOMP_SPINCOUNT"]
    assert first["provenance"]["config"]["text"] == SAMPLE
    assert first["provenance"]["metrics"]["train"]["rows"] == 5
    model = hashlib.sha256(b"HELLO").hexdigest()
    assert first["provenance"]["artifacts"]["train"]["model.txt"] == {"sha256": model}


def test_a_run_of_this_machine_keeps_its_source_beside_its_record(ran: Lab):
    record, kept = load_record(ran.root), origin_of(ran.runs()[0])
    head = subprocess.run(["git", "-C", str(HOME), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert record["commit"] == kept.commit == record["provenance"]["source"]["commit"]
    assert kept.commit == (head or None)
    assert record["dirty"] == kept.dirty


def test_data_is_known_by_its_content_and_overrides_as_they_were_given(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(lab.root)
    (lab.root / "corpus.txt").write_text("text")
    lab.file.write_text(SAMPLE.replace("{text: hello}", "{corpus: corpus.txt}"))
    made = begun(lab.plan("train.steps=7"), lab.root, "kinds", {})
    digest = hashlib.sha256(b"text").hexdigest()
    assert made["data"] == {"target": {"corpus": digest, "corpus.txt": digest}}
    assert made["config"]["overrides"] == ["train.steps=7"]
    assert made["config"]["steps"]["train"]["steps"] == 7


def test_a_run_in_an_image_keeps_by_what_that_was_built(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    known, tools = {"digest": f"sha256:{'d' * 64}"}, {"buildkit": "v0.25.0"}
    around = {**environment(), "image": known}
    monkeypatch.setattr(manifest, "environment", lambda: dict(around))  # which is at /opt/env
    assert begun(lab.plan(), lab.root, "kinds", {})["environment"]["image"] == known
    build = lab.root / "build" / "train-cu130" / ("d" * 64)
    build.mkdir(parents=True)
    told = {"commit": "c" * 40, "base": {"digest": "sha256:b"}, "tools": tools}
    (build / "record.json").write_text(json.dumps(told))
    image = begun(lab.plan(), lab.root, "kinds", {})["environment"]["image"]
    assert image == {**known, "commit": "c" * 40, "base": "sha256:b", "builder": tools}


ONE = "name: one\nsteps:\n  - {name: target, uses: target}\n"


def test_a_run_that_was_sent_keeps_the_text_it_was_sent_whatever_is_at_the_senders_path_here(lab: Lab, tmp_path: Path):
    lab.file.write_text(ONE)
    asked = request_of(lab.load(), (), lab.plan().host, SAMPLE_KINDS)
    asked["pipeline"]["file"] = "/home/nobody/here/pipelines/one.yaml"
    (tmp_path / "sent").mkdir()
    plan, sender = planned(asked, lab.root, tmp_path / "sent"), Sender("20260101T000000-one", "ann@laptop")
    assert execute(plan, lab.root, Lines(io.StringIO()), SAMPLE_KINDS, sender, asked).exit_code == 0
    assert load_record(lab.root)["provenance"]["config"]["text"] == ONE


def test_a_run_that_is_gone_on_with_keeps_what_it_runs_and_not_what_its_file_has_become(lab: Lab):
    lab.file.write_text(ONE)
    lab.run()
    (run,) = lab.runs()
    record = json.loads((run / "record.json").read_text())
    (run / "record.json").write_text(json.dumps({**record, "status": "interrupted"}))
    lab.file.unlink()
    assert lab.resume(run.name).exit_code == 0
    told = load_record(lab.root)
    assert told["provenance"]["config"]["text"] == ONE
    assert told["provenance"]["predecessor"] == {"run": run.name, "how": "resumed"}


def test_the_combinations_of_a_matrix_may_each_read_a_file_of_their_own_here(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(lab.root)
    for name in ("a", "b"):
        (lab.root / f"{name}.txt").write_text(f"{name}\n")
    step = {"name": "target", "uses": "target", "matrix": {"c": ["a.txt", "b.txt"]}}
    lab.file.write_text(json.dumps({"name": "m", "steps": [{**step, "with": {"corpus": "${{ matrix.c }}"}}]}))
    assert lab.run().exit_code == 0
    read = load_record(lab.root)["provenance"]["data"]
    assert {step: set(files) for step, files in kept(lab.runs()[0]).items()} == {
        step: {name for name in files if name.endswith(".txt")} for step, files in read.items()
    }
    assert len(read) == 2


def test_a_source_that_can_not_be_told_is_said_to_be_unknown_and_no_other(tmp_path: Path):
    assert origin(tmp_path).to_json() == dict.fromkeys(("commit", "remote", "dirty", "patch", "digest"))


def test_a_remote_is_named_without_who_asks_there(tmp_path: Path):
    (tmp_path / "dflash").mkdir()
    (tmp_path / "dflash" / "one.py").write_text("one = 1\n")
    for words in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", "first"),
        ("remote", "add", "origin", "https://ann:secret@example.org/project.git"),
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    found = origin(tmp_path)
    assert (found.remote, found.dirty) == ("https://example.org/project.git", False)
    (tmp_path / "dflash" / "two.py").write_text("two = 2\n")
    assert b"two = 2" in (origin(tmp_path).patch or b"")
    assert origin(tmp_path, [tmp_path / "dflash" / "two.py"]).dirty is False  # it is data, and known as such
    with (tmp_path / "rows.jsonl").open("wb") as file:
        file.truncate(65_000_000)
    found = origin(tmp_path)
    assert (found.commit is not None, found.dirty, found.patch) == (True, True, None)
    found.keep(tmp_path)
    with pytest.raises(UsageError, match="was not kept; commit it"), restored(tmp_path, tmp_path):
        pass


def test_a_patch_that_was_changed_since_is_never_taken_for_the_runs(ran: Lab):
    place = ran.runs()[0]
    told = json.loads((place / "source.json").read_text())
    (place / "source.json").write_text(json.dumps({**told, "patch": "0" * 64}))
    with pytest.raises(Exception, match=r"source\.json: is damaged, or its source\.patch is"):
        origin_of(place)


def test_of_a_python_that_is_no_environment_of_this_project_none_is_named(tmp_path: Path):
    found = environment(prefix=tmp_path)
    assert (found["lock"], found["name"], found["min_driver"]) == (None, None, None)
    assert found["packages"]["torch"]


def test_an_environment_is_named_by_the_declaration_whose_lock_it_has():
    found = environment()
    assert found["name"] == "local"
    assert found["packages"]["torch"] == found["torch"]
    assert found["generation"] is None
