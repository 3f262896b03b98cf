"""What a pipeline's file may say, and where each mistake is."""

from __future__ import annotations

import pytest

from dflash.errors import ConfigError
from tests.pipeline.lab import Lab
from tests.pipeline.sample_kinds import Optimizer, TrainConfig

TARGET = "  - {name: target, uses: target}\n"
TRAIN = "  - name: train\n    uses: train\n    needs: [target]\n"


def test_a_step_has_its_kinds_config_with_defaults(lab: Lab):
    pipeline = lab.load()
    assert pipeline.step("train").config == TrainConfig(steps=5, optimizer=Optimizer(lr=0.001))
    assert pipeline.step("train").takes == {"target": "target"}
    assert pipeline.step("prewarm").borrows == "train"


def test_steps_come_after_their_needs_and_else_as_in_the_file(lab: Lab):
    step = "  - {{name: {0}, uses: target, needs: [{1}]}}\n"
    pairs = [("d", "b, c"), ("z", ""), ("c", "a"), ("b", "a"), ("a", ""), ("e", "")]
    lab.file.write_text("name: x\nsteps:\n" + "".join(step.format(*pair) for pair in pairs))
    assert [each.name for each in lab.load().steps] == ["z", "a", "c", "b", "d", "e"]


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("- a\n", "1:1", "must be a map, not a list"),
        ("name: x\n", "1:1", "the key 'steps' is missing"),
        ("name: x\nsteps: []\n", "2:8", "should have at least 1 item, and has none; give it one"),
        ("name: x\nsteps: [a]\n", "2:9", 'must be a map, not "a"; its keys are name, uses, needs, '),
        ("name: x\nstepz:\n" + TARGET, "2:1", "unknown key 'stepz'; did you mean 'steps'?"),
        ("name: X y\nsteps:\n" + TARGET, "1:7", "'X y' is no name: a name is made of"),
        ("name: x\nsteps:\n  - {name: a/b, uses: target}\n", "3:12", "'a/b' is no name"),
        ("name: x\nsteps:\n  - {name: a, use: target}\n", "3:15", "unknown key 'use'; did you mean 'uses'?"),
        ("name: x\nsteps:\n  - {name: a}\n", "3:5", "the key 'uses' is missing"),
        ("name: x\nsteps:\n  - {name: a, uses: 7}\n", "3:21", "must be a valid string, not 7"),
        ("name: x\nsteps:\n  - {name: a, uses: tagret}\n", "3:21", "did you mean 'target'?"),
        ("name: x\nsteps:\n  - {name: a, uses: zzz}\n", "3:21", "known kinds: check, evaluate"),
        (
            "name: x\nsteps:\n  - {name: a, uses: target, needs: b}\n",
            "3:36",
            'must be a list, not "b"; put it in brackets: [b]',
        ),
        (
            f"name: x\nsteps:\n{TARGET}{TARGET}",
            "4:12",
            "the name 'target' is already given to a step on line 3",
        ),
        (
            f"name: x\nsteps:\n{TARGET}{TRAIN}".replace("[target]", "[targt]"),
            "6:13",
            "did you mean 'target'?",
        ),
        (f"name: x\nsteps:\n{TARGET}{TRAIN}".replace("[target]", "[target, target]"), "6:21", "needed twice"),
        (f"name: x\nsteps:\n{TARGET}  - {{name: t, uses: train}}\n", "4:5", "add 'target' to its needs"),
        ("name: x\nsteps:\n  - {name: t, uses: train}\n", "3:5", "add a step that uses target"),
        (
            "name: x\nsteps:\n  - {name: a, uses: target}\n  - {name: b, uses: target}\n"
            "  - {name: t, uses: train, needs: [a, b]}\n",
            "5:35",
            "takes one target, and needs a and b",
        ),
        (f"name: x\nsteps:\n{TARGET}{TRAIN}    with: {{stps: 3}}\n", "7:12", "did you mean 'steps'?"),
        (
            f"name: x\nsteps:\n{TARGET}{TRAIN}    with: {{steps: '3'}}\n",
            "7:19",
            'must be a valid integer, not "3"',
        ),
        (
            f"name: x\nsteps:\n{TARGET}{TRAIN}    with: {{steps: true}}\n",
            "7:19",
            "must be a valid integer, not true",
        ),
        (f"name: x\nsteps:\n{TARGET}{TRAIN}    with: {{steps: 0}}\n", "7:19", "steps must be at least 1"),
        (f"name: x\nsteps:\n{TARGET}{TRAIN}    with: 3\n", "7:11", "must be a map, not 3"),
        (
            f"name: x\nsteps:\n{TARGET}{TRAIN}    with:\n      optimizer:\n        betas: [0.9, x]\n",
            "9:22",
            'must be a valid number, not "x"',
        ),
        (
            f"name: x\nsteps:\n{TARGET}{TRAIN}    with:\n      optimizer:\n        lrr: 1\n",
            "9:9",
            "unknown key 'lrr'; did you mean 'lr'?",
        ),
        (
            "name: x\nsteps:\n  - {name: w, uses: prewarm, with: {for_step: trian}}\n" + TARGET + TRAIN,
            "3:47",
            "for_step names 'trian', which is no other step; did you mean 'train'?",
        ),
        (
            "name: x\nsteps:\n  - {name: w, uses: prewarm}\n",
            "3:5",
            "for_step names 'train', which is no other",
        ),
        (
            "name: x\nsteps:\n  - {name: a, uses: target, needs: [c]}\n"
            "  - {name: b, uses: target, needs: [a]}\n  - {name: c, uses: target, needs: [b]}\n",
            "3:37",
            "steps need each other in a circle: a -> c -> b -> a",
        ),
        ("name: x\nsteps:\n  - {name: a, uses: target, needs: [a]}\n", "3:37", "step 'a' needs itself; remove it"),
    ],
)
def test_a_mistake_is_named_with_its_place(lab: Lab, text: str, place: str, says: str):
    lab.file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        lab.load()
    assert str(caught.value).startswith(f"{lab.file}:{place}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


FINALLY = "finally:\n  - {name: tidy, uses: check, needs: [train], when: failed}\n"


def test_what_is_in_finally_comes_last_and_may_ask_whether_a_step_failed(lab: Lab):
    lab.file.write_text(FINALLY + lab.file.read_text())
    last = lab.load("tidy.min_disk_gib=2").steps[-1]
    assert (last.name, last.is_last, last.when, last.config.min_disk_gib) == ("tidy", True, "failed", 2.0)
    assert not any(step.is_last for step in lab.load().steps[:-1])


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("  - {name: late, uses: check, needs: [tidy]}\n", "7:39", "needs 'tidy', which is in finally:"),
        ("  - {name: tidy, uses: check}\n", "9:12", "the name 'tidy' is already given to a step on line 7"),
    ],
)
def test_nothing_needs_what_is_in_finally(lab: Lab, text: str, place: str, says: str):
    lab.file.write_text(f"name: x\nsteps:\n{TARGET}{TRAIN}{text}{FINALLY}")
    with pytest.raises(ConfigError, match=says) as caught:
        lab.load()
    assert str(caught.value).startswith(f"{lab.file}:{place}: ")


def test_what_is_in_finally_is_given_nothing(lab: Lab):
    lab.file.write_text(lab.file.read_text() + "finally:\n  - {name: e, uses: evaluate, needs: [train]}\n")
    with pytest.raises(ConfigError, match=r"in finally: nothing is sure to be made; move it to steps:"):
        lab.load()
