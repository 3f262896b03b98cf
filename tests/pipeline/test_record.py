"""Records of many runs."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

from dflash.errors import DataError, UsageError
from dflash.pipeline.record import listed, load_record, runs
from dflash.pipeline.resuming import unfinished
from tests.pipeline.lab import Lab


def many(lab: Lab, count: int, **more: Any) -> list[str]:
    """Runs as the one that is there, older than it."""
    (run,) = lab.runs()
    record = json.loads((run / "record.json").read_text()) | more
    names = [f"20200101T{number:06}-sample" for number in range(count)]
    for name in names:
        (run.parent / name).mkdir()
        text = json.dumps(record | {"id": name}, indent=1) + "\n"  # not by `write_json`, which would sync each
        (run.parent / name / "record.json").write_text(text)
    return names


def test_what_stands_before_the_steps_is_read_alone_and_is_the_same(ran: Lab):
    many(ran, 3)
    heads, records = listed(ran.root, whole=False), listed(ran.root)
    for head, record in zip(heads, records, strict=True):
        assert head == {name: record[name] for name in head} | {"steps": []}
    assert {*heads[0]} >= {"id", "pipeline", "host", "status", "started", "wall_s", "acceptance_length"}


@pytest.mark.parametrize("cut", [0, 1, 300, 5000, -4, -5])
def test_a_record_that_was_cut_off_is_damaged_however_little_of_it_is_read(ran: Lab, cut: int):
    (run,) = ran.runs()
    text = (run / "record.json").read_text()
    assert len(text) > 6000
    (run / "record.json").write_text(text[:cut])
    for whole in (True, False):
        assert [each["status"] for each in listed(ran.root, whole=whole)] == ["damaged"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"started": ""},
        {"started": None},
        {"started": 7},
        {"started": "0001-01-01T00:00:00"},
        {"wall_s": None},
        {"wall_s": "1"},
        {"wall_s": math.inf},
        {"wall_s": math.nan},
        {"wall_s": 10**400},
        {"peak_rss_mb": None},
        {"status": None},
        {"host": 1},
        {"pipeline": []},
    ],
    ids=str,
)
def test_a_record_with_what_is_not_of_its_kind_is_damaged_and_hides_no_other_run(ran: Lab, wrong: dict[str, Any]):
    (name,) = many(ran, 1, **{"status": "running", **wrong})
    for whole in (True, False):
        assert [each["status"] for each in listed(ran.root, whole=whole)] == ["damaged", "ok"]
    with pytest.raises(DataError, match=rf"{name}/record\.json: the record is damaged"):
        load_record(ran.root, name)


@pytest.mark.parametrize(
    "steps",
    [
        None,
        {},
        [{}],
        [None],
        [{"name": "train", "kind": "train", "status": "running", "folder": "work/train/1", "seconds": None}],
        [{"name": "train", "kind": "train", "status": "ok", "folder": "work/train/1", "seconds": 1.0, "attempts": [1]}],
        [
            {
                "name": "train",
                "kind": "train",
                "status": "ok",
                "folder": "work/train/1",
                "seconds": 1.0,
                "started": "now",
            }
        ],
    ],
    ids=str,
)
def test_a_record_with_steps_that_are_none_is_damaged_to_whoever_reads_them(ran: Lab, steps: Any):
    (name,) = many(ran, 1, steps=steps, status="running")
    assert [each["status"] for each in listed(ran.root)] == ["damaged", "ok"]
    with pytest.raises(DataError, match="the record is damaged"):
        load_record(ran.root, name)


def test_thousands_of_runs_are_listed_in_a_moment(ran: Lab):
    many(ran, 2000)
    begun = time.process_time()
    assert len(listed(ran.root, whole=False)) == 2001
    assert time.process_time() - begun < 1.0


def test_what_is_left_to_do_is_found_without_reading_runs_before_it(ran: Lab):
    names = many(ran, 3)
    for name, status in zip(names, ("ok", "failed", "ok"), strict=True):
        record = json.loads((ran.root / "runs" / name / "record.json").read_text())
        steps = [{**step, "key": f"{name} {step['key']}"} for step in record["steps"]]
        text = json.dumps({**record, "status": status, "steps": steps})
        (ran.root / "runs" / name / "record.json").write_text(text)
    (ran.root / "runs" / names[0] / "record.json").unlink()
    (ran.root / "runs" / names[0] / "record.json").mkdir()  # which can not be read
    assert unfinished(ran.root) == names[1]


def test_the_search_for_what_is_left_to_do_takes_a_moment_among_thousands(ran: Lab):
    names = many(ran, 1000, status="failed")  # each of which the one after it, and the last, has done
    assert runs(ran.root)[:1000] == names
    assert load_record(ran.root)["status"] == "ok"
    begun = time.process_time()
    with pytest.raises(UsageError, match="every run has ended well"):
        unfinished(ran.root)
    assert time.process_time() - begun < 2.0
