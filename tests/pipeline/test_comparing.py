"""What differs between two records, and what came of doing a run again: cases in tests/data/records."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash.pipeline.comparing import Difference, compare, same, with_lines
from dflash.pipeline.provenance.lines import first_other
from dflash.pipeline.verdict import Made, judged

DATA = Path(__file__).parents[1] / "data" / "records"
COMPARE = yaml.safe_load((DATA / "compare.yaml").read_text())
VERDICTS = yaml.safe_load((DATA / "verdict.yaml").read_text())


def changed(record: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A copy with other values at some paths. A name may have points in it, as a library's has, or a step's."""
    made = copy.deepcopy(record)
    for path, value in change.items():
        place, rest = made, path
        while inner := next((name for name in place if rest.startswith(f"{name}.")), None):
            place, rest = place[inner], rest.removeprefix(f"{inner}.")
        if value is None:
            del place[rest]
        else:
            place[rest] = value
    return made


@pytest.mark.parametrize("case", COMPARE["cases"], ids=lambda case: case["name"])
def test_two_records_differ_in_what_is_another_and_nothing_else(case: dict[str, Any]):
    old = {"provenance": COMPARE["base"]}
    new = {"provenance": case["only"] if "only" in case else changed(COMPARE["base"], case["change"])}
    found = compare(old, new, case.get("accept", ()))
    assert [(each.field, each.severity) for each in found] == [
        (field, severity) for field, severity, _ in case["expect"]
    ]
    for each, (_, _, cause) in zip(found, case["expect"], strict=True):
        assert cause in each.cause


def test_what_is_the_same_is_counted_and_a_record_from_before_still_compares():
    whole = {"provenance": COMPARE["base"]}
    assert same(whole, whole) > same(whole, {"provenance": changed(COMPARE["base"], {"gpus.nccl": "2"})}) > 20
    old = {"commit": "a", "lock_id": "l", "python": "3.11.7", "torch": "2.13.0"}
    found = compare(old, {**old, "commit": "b", "python": "3.12.1"})
    assert [(each.field, each.severity) for each in found] == [
        ("source.commit", "blocking"),
        ("environment.python", "blocking"),
    ]
    assert same(old, old) == 4


def test_the_first_line_that_is_another_is_named_where_it_can_be_told():
    old, new = {"data": {"talk.jsonl": [1, 2, 3]}}, {"data": {"talk.jsonl": [1, 2, 4, 5]}}
    assert first_other(old, new, "data", "talk.jsonl") == 3
    assert first_other(old, {"data": {"talk.jsonl": [1, 2]}}, "data", "talk.jsonl") == 3
    assert first_other(old, {}, "data", "talk.jsonl") is None
    different = [Difference("data.data.talk.jsonl", "a", "b", "blocking", "other data: talk.jsonl")]
    (told,) = with_lines(different, lambda step, name: first_other(old, new, step, name))
    assert told.cause == "other data: talk.jsonl, from line 3 on"


def test_the_first_other_line_of_a_step_of_a_matrix_is_found_though_its_name_has_points():
    asked = {("data@lr=0.001", "talk.jsonl"): 7}
    different = [Difference("data.data@lr=0.001.talk.jsonl", "a", "b", "blocking", "other data: talk.jsonl")]
    (told,) = with_lines(different, lambda step, name: asked.get((step, name)))
    assert told.cause == "other data: talk.jsonl, from line 7 on"


def test_graphs_compiled_anew_for_processors_are_others_only_where_the_code_generated_for_them_is():
    def record(snapshot: str, **files: str) -> dict[str, Any]:
        made = {name.replace("_", "."): {"sha256": content} for name, content in files.items()}
        config = {"steps": {"train": {"device": "cpu"}}}
        return {
            "provenance": {
                "config": config,
                "cache": {"prewarm": {"snapshot": snapshot}},
                "artifacts": {"prewarm": made},
            }
        }

    first = record("s1", ca_cpp="a", ca_so="in one folder")
    assert compare(first, record("s2", ca_cpp="a", ca_so="in another")) == []
    assert compare(first, record("s1", ca_cpp="a", ca_so="in one folder")) == []
    (found,) = compare(first, record("s2", ca_cpp="b", ca_so="in another"))
    assert (found.field, found.severity) == ("cache.prewarm.snapshot", "tolerable")


def made(rows: list[dict[str, Any]], files: dict[str, Any], status: str = "ok") -> Made:
    record = {
        "status": status,
        "steps": [{"name": "train", "kind": "train"}],
        "provenance": {"artifacts": {"train": files}},
    }
    return Made({"train": rows} if rows else {}, record)


@pytest.mark.parametrize("case", VERDICTS, ids=lambda case: case["name"])
def test_a_verdict_says_what_came_of_doing_a_run_again(case: dict[str, Any]):
    before, after = case.get("files", ({}, {}))
    differences = [Difference(field, 1, 2, "tolerable", cause) for field, cause in case.get("differences", ())]
    others = [made(rows, case.get("files of others", after)) for rows in case.get("others", ())]
    found = judged(made(case["old"], before, case.get("status", "ok")), made(case["new"], after), differences, others)
    assert {name: getattr(found, name) for name in case["expect"]} == case["expect"]
    assert found.is_good == (case["expect"]["kind"] in ("bit-identical", "within noise"))
    assert case["expect"]["kind"] in str(found) or found.kind == "within noise"
