"""What a plan says: run, skip or resume, and which input changed."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dflash.errors import ConfigError, StorageError
from dflash.hosts.chain import Chain, Local
from dflash.hosts.inventory import Host
from dflash.pipeline.answer import plan_of
from dflash.pipeline.keys import HOME, Surroundings, key_of, lock_id, observe
from dflash.pipeline.plan import make_plan
from dflash.pipeline.policy import LEFT_OUT
from dflash.pipeline.schema import load_pipeline
from dflash.pipeline.store import ABSENT, Store
from tests.pipeline.lab import Lab
from tests.pipeline.sample_kinds import KINDS


class EmptyShelf:
    def look(self, kind: str, key: str) -> object:
        return ABSENT

    def newest(self, kind: str, step: str) -> None:
        return None


def test_a_first_plan_runs_everything(lab: Lab):
    assert set(lab.statuses().values()) == {"run"}
    assert lab.why("train") == ("it has not been made before",)
    assert lab.why("check") == ("runs every time",)


def test_a_changed_config_is_named_down_to_its_key(ran: Lab):
    assert ran.why("train", "train.steps=7", "train.optimizer.lr=0.5") == (
        "config.steps: 5 -> 7",
        "config.optimizer.lr: 0.001 -> 0.5",
    )
    assert ran.why("prewarm", "train.steps=7") == ("borrowed.steps: 5 -> 7",)
    assert ran.statuses("train.steps=7")["target"] == "skip"
    assert ran.why("evaluate", "train.steps=7")[0].startswith("inputs.train: ")


def test_of_a_borrowed_config_only_what_decides_the_result_makes_a_step_run_again(ran: Lab):
    statuses = ran.statuses("train.optimizer.lr=0.5")
    assert (statuses["prewarm"], statuses["train"]) == ("skip", "run")
    assert ran.why("prewarm", "train.optimizer.betas=[0.5]") == ("borrowed.optimizer.betas: [0.9,0.95] -> [0.5]",)


def test_a_changed_input_is_data_too(ran: Lab):
    told = {each["name"]: each for each in ran.plan("train.steps=7", "train:env.A=b").as_json()["steps"]}
    assert told["train"]["changes"] == [
        {"field": "config.steps", "old": 5, "new": 7},
        {"field": "env.A", "old": None, "new": "b"},
    ]
    assert told["train"]["why"] == ["config.steps: 5 -> 7", "env.A: added, b"]
    assert [each["field"] for each in told["evaluate"]["changes"]] == ["inputs.train"]
    assert told["target"]["changes"] == []


def test_what_a_step_declares_is_in_its_key_where_it_may_decide_the_result(ran: Lab):
    policy = ("retry=3", "timeout=1h", "no_output_timeout=5m", "when=host.gpus==0", "host=gpu1", "launcher=torchrun")
    assert ran.statuses(*(f"train:{each}" for each in policy))["train"] == "skip"
    declared = ["train:env.A=b", "train:outputs=['*.txt']", "train:secrets=[HF_TOKEN]"]
    assert ran.why("train", *declared) == (
        'outputs: added, ["*.txt"]',
        "env.A: added, b",
        'secrets: added, ["HF_TOKEN"]',
    )


def test_the_files_that_a_step_names_are_in_its_key(ran: Lab):
    folder = ran.root / "corpus"
    (folder / "deep").mkdir(parents=True)
    for name in ("a.txt", "b.md", "deep/c.txt"):
        (folder / name).write_text(name)
    named = f"train:inputs=['{folder}/**/*.txt', '{folder}/deep', README.md]"
    step = next(each for each in ran.plan(named).steps if each.step.name == "train")
    assert [*step.fields["files"]] == [f"{folder}/a.txt", f"{folder}/deep/c.txt", "README.md"]
    ran.run(named)
    (folder / "b.md").write_text("is not among them")
    assert ran.statuses(named)["train"] == "skip"
    (folder / "a.txt").write_text("changed")
    (why,) = ran.why("train", named)
    assert why.startswith(f"files.{folder}/a.txt: {hashlib.sha256(b'a.txt').hexdigest()[:12]} -> ")


def test_a_folder_that_is_linked_into_another_is_in_the_key_of_a_step(ran: Lab):
    data, elsewhere = ran.root / "data", ran.root / "elsewhere"
    for folder in (data, elsewhere):
        folder.mkdir()
        (folder / "a.txt").write_text("a")
    (data / "linked").symlink_to(elsewhere)
    (elsewhere / "round").symlink_to(data)
    named = f"train:inputs=['{data}']"
    step = next(each for each in ran.plan(named).steps if each.step.name == "train")
    assert [*step.fields["files"]] == [f"{data}/a.txt", f"{data}/linked/a.txt"]


def test_what_is_made_for_a_machine_is_made_again_for_another_host(lab: Lab):
    def keys(host: str) -> dict[str, str]:
        kinds = {**KINDS, "prewarm": replace(KINDS["prewarm"], fingerprint=lambda _: {"gpu": "x"}, fingerprint_of=())}
        pipeline = load_pipeline(lab.file, kinds, [f"prewarm:host={host}", f"target:host={host}"])
        plan = make_plan(pipeline, Host("local", Chain((Local(),))), observe(pipeline), EmptyShelf())
        return {each.step.name: each.key for each in plan.steps}

    one, other, here = keys("gpu1"), keys("gpu2"), keys("null")
    assert len({one["prewarm"], other["prewarm"], here["prewarm"]}) == 3
    assert one["target"] == other["target"] == here["target"]


def test_the_order_in_which_secrets_and_outputs_are_written_decides_nothing(ran: Lab):
    def key(secrets: str, outputs: str) -> str:
        return ran.plan(f"train:secrets=[{secrets}]", f"train:outputs=[{outputs}]").steps[3].key

    assert key("B, A", "a.txt, b.txt") == key("A, B, B", "b.txt, a.txt") != key("A, B", "a.txt")


TWINS = """\
name: twins
steps:
  - {name: first, uses: target, with: {text: hello}}
  - {name: second, uses: target, host: gpu1, with: {text: hello}}
  - {name: third, uses: target, with: {text: other}}
  - {name: one, uses: train, needs: [first], with: {steps: 5}}
  - {name: two, uses: train, needs: [second], with: {steps: 5}}
  - {name: warm, uses: prewarm, matrix: {h: [gpu1, gpu2]}, host: "${{ matrix.h }}", with: {for_step: one}}
finally:
  - {name: last, uses: check, matrix: {h: [1, 2]}}
"""


def test_two_steps_of_a_plan_never_have_one_key(lab: Lab):
    lab.file.write_text(TWINS)
    made = {each.step.name: each for each in lab.plan().steps}
    assert len({each.key for each in made.values()}) == len(made) == 9
    apart = {name: {part: each.fields.get(part) for part in ("step", "host")} for name, each in made.items()}
    assert apart["first"] == {"step": "first", "host": None}
    assert apart["second"] == {"step": "second", "host": "gpu1"}
    assert apart["warm@h=gpu2"] == {"step": "warm@h=gpu2", "host": "gpu2"}
    assert apart["last@h=1"] == {"step": "last@h=1", "host": None}
    assert not made["third"].fields.keys() & {"step", "host"}, "no other has its key: it is what it always was"


def test_inputs_that_match_nothing_are_named_with_their_place(lab: Lab):
    text = lab.file.read_text().replace("with: {text: hello}", "inputs: [README.md, 'corpus/*.txt']")
    lab.file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        lab.plan()
    assert str(caught.value) == (
        f"{lab.file}:8:25: no file matches 'corpus/*.txt'; check it: what is relative begins in the project's folder; "
        "or remove it"
    )


def test_a_step_whose_condition_does_not_hold_is_left_out_and_so_is_what_needs_it(lab: Lab):
    plan = lab.plan("train:when=host.gpus >= 8", "train.gpus=8", "prewarm:when=steps.check.ok")
    assert {each.step.name: each.status for each in plan.steps} == {
        "check": "run",
        "target": "run",
        "prewarm": "run",
        "train": LEFT_OUT,
        "evaluate": LEFT_OUT,
    }
    assert [each.why[0] for each in plan.steps[2:]] == [
        "only if steps.check.ok, which is known then",
        "it runs only if host.gpus >= 8",
        "it needs train, which is left out",
    ]
    assert [each.step.name for each in plan.steps if each.gpus] == ["prewarm"]


def test_a_combination_that_is_left_out_takes_only_its_own_with_it(lab: Lab):
    text = lab.file.read_text() + "  - {name: sum, uses: check, needs: [evaluate]}\n"
    lab.file.write_text(text.replace("    with: {text: hello}", "    matrix: {x: [1, 2]}\n    when: matrix.x == 1"))
    assert {name: status for name, status in lab.statuses().items() if status == LEFT_OUT} == dict.fromkeys(
        ["target@x=2", "train@x=2", "evaluate@x=2"], LEFT_OUT
    )
    assert set(lab.statuses("target:when=false").values()) == {"run", LEFT_OUT}
    assert lab.why("sum", "target:when=false") == ("it needs evaluate, which is left out",)


def test_a_plan_from_another_machine_says_the_same_of_its_steps(ran: Lab):
    told = json.loads(json.dumps(ran.plan("train.steps=7", "train:when=host.gpus == 0").as_json()))
    assert plan_of(told, told["file"], Host("local", Chain((Local(),)))).as_json()["steps"] == told["steps"]


def test_a_changed_surrounding_is_named(ran: Lab):
    pipeline = ran.load()
    seen = observe(pipeline)
    local = Host("local", Chain((Local(),)))
    changed = Surroundings(
        lock="b" * 64,
        python="3.99.0",
        sources={**seen.sources, "target": {"errors.py": "c" * 64}},
        fingerprints={**seen.fingerprints, "target": {"corpus": "d" * 64}},
    )
    plan = make_plan(pipeline, local, changed, Store(ran.root))
    why = "\n".join(plan.steps[1].why)
    assert f"lock: {seen.lock[:12] or 'none'} -> {'b' * 12}" in why
    assert f"python: {seen.python} -> 3.99.0" in why
    assert f"sources.errors.py: {seen.sources['target']['errors.py'][:12]} -> {'c' * 12}" in why
    assert f"fingerprint.corpus: added, {'d' * 12}" in why


def test_a_corpus_that_changes_runs_its_step_again(lab: Lab):
    corpus = lab.root / "corpus.txt"
    corpus.write_text("one")
    lab.run(f"target.corpus={corpus}")
    corpus.write_text("two")
    assert lab.why("target", f"target.corpus={corpus}")[0].startswith("fingerprint.corpus: ")
    corpus.unlink()
    with pytest.raises(StorageError, match=r"corpus.txt: No such file"):
        lab.plan(f"target.corpus={corpus}")
    lab.declare(target={"with": {"corpus": str(corpus)}})
    line = next(n for n, text in enumerate(lab.file.read_text().splitlines(), 1) if "corpus:" in text)
    with pytest.raises(StorageError) as caught:
        lab.plan()
    assert str(caught.value) == (
        f"{lab.file}:{line}:13: target.corpus: {corpus}: No such file or directory; check that the path exists and can "
        "be used, or name another: --set target.corpus=PATH"
    )


def test_an_output_that_is_gone_or_changed_runs_its_step_again(ran: Lab):
    model = ran.folder("train") / "model.txt"
    os.utime(model, (1, 1))
    assert ran.statuses()["train"] == "skip"  # a new time with the same content is no change
    model.write_text("HELLP")
    assert ran.why("train") == ("output model.txt has changed",)
    assert ran.why("evaluate") == ("train is made again first; if that gives the same files, this is skipped",)
    model.unlink()
    assert ran.why("train") == ("output model.txt is missing",)


def test_files_in_scratch_and_hidden_ones_are_no_outputs(ran: Lab):
    done = json.loads((ran.folder("train") / "done.json").read_text())
    assert [each["path"] for each in done["outputs"]] == ["metrics.jsonl", "model.txt"]


def test_a_damaged_done_file_counts_as_unfinished(ran: Lab):
    (ran.folder("train") / "done.json").write_text("{")
    assert ran.statuses()["train"] == "resume"


def test_a_step_that_failed_is_said_to_have_failed_and_where_its_record_is_gone_to_have_been_started(lab: Lab):
    lab.run("train.fault=raise")
    (run,) = lab.runs()
    assert lab.why("train", "train.fault=raise") == (f"it failed in run {run.name}",)
    assert lab.statuses("train.fault=raise")["train"] == "resume"
    (run / "record.json").unlink()
    assert lab.why("train", "train.fault=raise") == (f"it was started by run {run.name} and has not finished",)


def test_a_host_that_is_not_reached_runs_everything_and_says_so(lab: Lab):
    plan = lab.plan("train.gpus=8", host="ssh:root@gpu1/pct:200")
    assert {each.status for each in plan.steps} == {"run"}
    assert plan.steps[1].why == ("what ssh:root@gpu1/pct:200 holds is not known until it is reached",)
    assert [each.step.name for each in plan.steps if each.gpus] == ["prewarm", "train"]


def test_a_plan_is_a_pure_function(lab: Lab):
    pipeline = lab.load()
    local = Host("local", Chain((Local(),)))
    seen = Surroundings("a", "3.11", {name: {} for name in KINDS}, {each.name: {} for each in pipeline.steps})
    plan = make_plan(pipeline, local, seen, EmptyShelf())
    assert plan == make_plan(pipeline, local, seen, EmptyShelf())
    assert [each.key for each in plan.steps] == [key_of(each.fields) for each in plan.steps]
    assert plan.steps[3].fields["inputs"] == {"target": plan.steps[1].key}
    json.dumps(plan.as_json())


def test_a_pipeline_of_a_thousand_steps_is_planned_within_a_second(lab: Lab):
    lines = ["name: long", "steps:"]
    for number in range(1000):
        needs = f"[s{number - 1}]" if number else "[]"
        lines.append(f"  - {{name: s{number}, uses: target, needs: {needs}, with: {{text: t{number}}}}}")
    lab.file.write_text("\n".join(lines))
    local = Host("local", Chain((Local(),)))
    began = time.process_time()
    pipeline = load_pipeline(lab.file, KINDS)
    make_plan(pipeline, local, observe(pipeline), EmptyShelf())
    assert time.process_time() - began < 1.0


def test_the_lock_is_that_of_the_environment_at_work_or_of_nobodys_python_a_hash_of_its_packages(tmp_path: Path):
    local = hashlib.sha256((HOME / "envs" / "local" / "requirements.lock").read_bytes()).hexdigest()
    assert lock_id(tmp_path) == lock_id(tmp_path) != local
    assert len(lock_id(tmp_path)) == 64
    (tmp_path / "dflash-stamp").write_text(f"python 3.12.3\nlock {'a' * 64}\nspec 0\nplace {tmp_path}\n")
    assert lock_id(tmp_path) == "a" * 64
    (tmp_path / "requirements.lock").write_text("one==1\n")
    assert lock_id(tmp_path) == hashlib.sha256(b"one==1\n").hexdigest()
