"""Conditions while a pipeline runs: what is left out, and that the run is whole without it."""

from __future__ import annotations

import pytest

from tests.pipeline.lab import Lab

SHORT = """\
name: short
steps:
  - {name: target, uses: target}
  - {name: train, uses: train, needs: [target], with: {steps: 1}}
  - {name: evaluate, uses: evaluate, needs: [train]}
finally:
  - {name: sorry, uses: check, when: failed}
  - {name: tidy, uses: check, needs: [train], when: "steps.train.status == 'failed'"}
"""


@pytest.fixture
def short(lab: Lab) -> Lab:
    lab.file.write_text(SHORT)
    return lab


def ended(lab: Lab, *overrides: str) -> dict[str, str]:
    return {each["name"]: each["status"] for each in lab.run(*overrides).record["steps"]}


def test_a_step_is_left_out_for_the_result_of_another_and_the_run_is_whole(short: Lab):
    outcome = short.run("evaluate:when=steps.train.started_at > 0")
    steps = {each["name"]: each for each in outcome.record["steps"]}
    assert (outcome.exit_code, outcome.record["status"]) == (0, "ok")
    assert (steps["evaluate"]["status"], steps["evaluate"]["why"]) == (
        "left out",
        ["it runs only if steps.train.started_at > 0"],
    )
    assert (steps["sorry"]["status"], steps["tidy"]["status"]) == ("left out", "left out")
    assert "evaluate   left out: it runs only if" in short.said.getvalue()
    assert ended(short, "evaluate:when=steps.train.status == 'ok'")["evaluate"] == "ok"  # it was skipped this time


def test_a_step_is_left_out_with_what_it_needs_and_the_others_run(short: Lab):
    statuses = ended(short, "train:when=host.gpus >= 8")
    assert (statuses["target"], statuses["train"], statuses["evaluate"]) == ("ok", "left out", "left out")


def test_finally_may_ask_whether_a_step_failed(short: Lab):
    statuses = ended(short, "train.fault=raise")
    assert (statuses["train"], statuses["evaluate"]) == ("failed", "blocked")
    assert (statuses["sorry"], statuses["tidy"]) == ("ok", "ok")


def test_a_condition_that_can_not_be_decided_fails_its_step_and_says_why(short: Lab):
    outcome = short.run("evaluate:when=steps.train.los > 3")
    assert outcome.exit_code == 2
    assert str(outcome.failure) == (
        "--set evaluate:when=steps.train.los > 3: the result of 'train' has no 'los', in evaluate; did you mean 'loss'?"
    )


def test_every_combination_of_a_matrix_runs_in_a_folder_of_its_own(short: Lab):
    matrix = "tidy:when=false", "train:matrix.lr=[1, 2]", "train.optimizer.lr='${{ matrix.lr }}'"
    statuses = ended(short, *matrix, "evaluate:when=matrix.lr == 2")
    assert (statuses["train@lr=1"], statuses["train@lr=2"]) == ("ok", "ok")
    assert (statuses["evaluate@lr=1"], statuses["evaluate@lr=2"]) == ("left out", "ok")
    assert len(list((short.root / "work" / "train").iterdir())) == 2
