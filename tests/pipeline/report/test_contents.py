"""Where a report finds what it shows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from dflash.pipeline.record import load_record
from dflash.pipeline.report.contents import before, gather
from dflash.pipeline.report.page import page
from dflash.pipeline.report.writing import write_report
from dflash.training.metriclog import MetricLog
from dflash.training.usage import USAGE, log_of
from tests.pipeline.lab import Lab
from tests.pipeline.report.sample import OLD, noted, rows


def old_run(root: Path, run: str, **more: object) -> dict:
    """A run's folder, with its record from before attempts were noted."""
    record = {**OLD, "id": run, **more}
    folder = root / "runs" / run
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(record))
    return record


def write_usage(folder: Path, workers: Sequence[Sequence[dict]]) -> None:
    """The logs of workers, as they write them."""
    for rank, written in enumerate(workers):
        log = MetricLog(log_of(folder, rank), 0)
        for row in written:
            log.write(row)
        log.close()


def test_a_run_that_has_ended_has_its_report(ran: Lab):
    (run,) = ran.runs()
    html = (run / "report.html").read_text()
    assert f"<title>{run.name}: ok</title>" in html
    assert "<h3>Loss</h3>" in html
    assert len(re.findall("<rect class=.ok", html)) == 5


def test_rows_come_from_the_training_s_folder_or_from_where_they_were_fetched_to(tmp_path: Path):
    record = old_run(tmp_path, "20261129T163012-local")
    training = next(each for each in record["steps"] if each["kind"] == "train")
    assert gather(tmp_path, record).trainings == []
    for folder, count in ((tmp_path / training["folder"], 7), (tmp_path / "runs" / record["id"], 9)):
        folder.mkdir(parents=True, exist_ok=True)
        log = MetricLog(folder / "metrics.jsonl", 0)
        for row in rows(count):
            log.write(row)
        log.close()
        write_usage(folder / USAGE, [noted(0.5, None, count=count)] * count)
        assert gather(tmp_path, record).trainings[0].samples.rows == count
        assert [each.rank for each in gather(tmp_path, record).trainings[0].workers] == list(range(count))


def test_what_was_last_measured_is_told_as_it_was_however_long_the_log(tmp_path: Path):
    record = old_run(tmp_path, "20261129T163012-local")
    log = MetricLog(tmp_path / "runs" / record["id"] / "metrics.jsonl", 0)
    for step in range(1, 5000):
        heldout = {"heldout": {"loss": step / 1000, "accuracy": [step / 5000, 0.25]}} if step % 3 == 0 else {}
        log.write({"step": step, "loss": 1.0 * step} | heldout)
    log.close()
    html = page(gather(tmp_path, record))
    assert "held out 1.00 0.25" in html
    assert re.search("training <b>4,999</b>.*?held out <b>5</b>", html)
    assert gather(tmp_path, record).trainings[0].measured["step"] == 4998


def test_roles_are_those_that_were_planned(ran: Lab):
    (run,) = ran.runs()
    plan = json.loads((run / "plan.json").read_text())
    for each in plan["steps"]:
        if each["name"] == "train":
            each["config"]["topology"] = {"targets": 1, "drafters": 2, "target_gpus": 4}
    (run / "plan.json").write_text(json.dumps(plan))
    (training,) = gather(ran.root, load_record(ran.root)).trainings
    assert training.roles == {"target": range(4), "drafter": range(4, 6)}
    assert training.target_gpus == 4


def test_an_old_run_s_steps_began_when_its_events_say(tmp_path: Path):
    record = old_run(tmp_path, "20261129T163012-local")
    events = tmp_path / "runs" / record["id"] / "events.jsonl"
    events.write_text('{"time": 12.5, "event": "step_started", "step": "train"}\n{"time": 13, "event": "step_started"')
    spans = gather(tmp_path, record).spans
    assert [each.started for each in spans["train"]] == [12.5]
    assert spans["check"] == []


def test_the_run_before_is_the_newest_older_one_of_the_same_pipeline(tmp_path: Path):
    old_run(tmp_path, "20261101T000000-local")
    old_run(tmp_path, "20261102T000000-local")
    old_run(tmp_path, "20261103T000000-other", pipeline="other")
    (tmp_path / "runs" / "20261104T000000-local").mkdir()
    (tmp_path / "runs" / "20261104T000000-local" / "record.json").write_text("{")
    record = old_run(tmp_path, "20261105T000000-local", torch="2.14.0")
    old_run(tmp_path, "20261106T000000-local")
    found = before(tmp_path, record)
    assert found is not None
    assert found["id"] == "20261102T000000-local"
    assert [each.field for each in gather(tmp_path, record).differences] == ["environment.torch"]
    assert before(tmp_path, found | {"id": "20261101T000000-local"}) is None


def test_a_report_is_written_where_one_asks_for_it(tmp_path: Path):
    record = old_run(tmp_path, "20261129T163012-local")
    assert write_report(tmp_path, record) == tmp_path / "runs" / record["id"] / "report.html"
    there = tmp_path / "there" / "it.html"
    assert write_report(tmp_path, record, there) == there
    assert there.read_text().endswith("</html>\n")
