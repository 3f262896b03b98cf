"""A step with a matrix becomes one for each combination, and so does what takes from it."""

from __future__ import annotations

import pytest

from dflash.errors import ConfigError, UsageError
from tests.pipeline.lab import Lab

MATRIX = """\
name: grid
steps:
  - name: check
    uses: check
  - name: target
    uses: target
    needs: [check]
    matrix: {text: [one, two]}
    with: {text: "${{ matrix.text }}"}
  - name: train
    uses: train
    needs: [target]
    matrix: {steps: [1, 2]}
    with:
      steps: ${{ matrix.steps }}
  - name: sum
    uses: check
    needs: [train]
"""
NEEDS = "    needs: [target]\n    matrix: {steps: [1, 2]}\n"


@pytest.fixture
def grid(lab: Lab) -> Lab:
    lab.file.write_text(MATRIX)
    return lab


def test_there_is_a_step_for_each_combination_and_for_each_of_what_it_takes_from(grid: Lab):
    assert [step.name for step in grid.load().steps] == [
        "check",
        "target@text=one",
        "target@text=two",
        "train@text=one,steps=1",
        "train@text=one,steps=2",
        "train@text=two,steps=1",
        "train@text=two,steps=2",
        "sum",
    ]


def test_a_step_takes_from_its_own_combination_and_waits_for_all_of_what_only_orders(grid: Lab):
    loaded = grid.load()
    train = loaded.step("train@text=two,steps=1")
    assert train.takes == {"target": "target@text=two"}
    assert train.needs == ("target@text=two",)
    assert len(loaded.step("sum").needs) == 4
    assert loaded.step("sum").matrix == {}


def test_a_reference_keeps_the_type_of_its_value_and_within_a_text_is_text(grid: Lab):
    assert grid.load().step("train@text=one,steps=2").config.steps == 2
    loaded = grid.load("target.text=a ${{matrix.text}} text", "train:env.STEPS=${{ matrix.steps }}")
    assert loaded.step("target@text=two").config.text == "a two text"
    assert loaded.step("train@text=two,steps=1").env == {"STEPS": "1"}


def test_a_reference_may_be_in_inputs_and_in_the_host(grid: Lab):
    assert grid.load("target:inputs=['docs/${{ matrix.text }}.md']").steps[2].inputs == ("docs/two.md",)
    assert grid.load("target:host='${{ matrix.text }}'").steps[2].host == "two"


def test_set_on_the_declared_name_reaches_every_combination(grid: Lab):
    loaded = grid.load("train.optimizer.lr=0.5", "train:timeout=5m")
    trained = [step for step in loaded.steps if step.kind.name == "train"]
    assert {step.config.optimizer.lr for step in trained} == {0.5}
    assert {step.limits.timeout_s for step in trained} == {300.0}
    assert len(trained) == 4
    assert len(grid.load("train:matrix.steps=[3]").steps) == 6


def test_values_may_be_maps_and_names_stay_unique_and_valid_for_files(grid: Lab):
    values = "[{lr: 1e-3}, {lr: 5e-4}, {lr: 1e-3, betas: [0.5]}]"
    loaded = grid.load(
        "target:matrix.text=['a/b', 'a b', '" + "x" * 300 + "']",
        f"train:matrix.optimizer={values}",
        "train.optimizer='${{ matrix.optimizer }}'",
    )
    names = [step.name for step in loaded.steps]
    assert len(set(names)) == len(names) == 1 + 3 + 3 * 2 * 3 + 1
    assert all(len(name) < 150 and "/" not in name and " " not in name for name in names)
    assert "train@text=a-b,steps=1,optimizer=lr-0.001" not in names  # two texts have that name
    assert [name for name in names if name.startswith("target@text=a-b~")] != []
    assert loaded.steps[-2].config.optimizer.betas == (0.5,)


def test_two_steps_with_one_name_and_the_same_values_go_together(lab: Lab):
    lab.file.write_text(
        MATRIX.replace("matrix: {steps: [1, 2]}", "matrix: {text: [one, two]}").replace("${{ matrix.steps }}", "3")
    )
    assert [step.name for step in lab.load().steps if step.kind.name == "train"] == [
        "train@text=one",
        "train@text=two",
    ]


def test_a_lender_has_the_borrowers_combination(grid: Lab):
    warm = "  - {name: warm, uses: prewarm, matrix: {steps: [1, 2]}}\n"
    text = MATRIX.replace("  - name: sum", f"{warm}  - name: sum").replace("matrix: {text: [one, two]}", "")
    grid.file.write_text(text.replace("${{ matrix.text }}", "one"))
    assert grid.load().step("warm@steps=2").borrows == "train@steps=2"


def test_several_lenders_do_where_they_agree_in_what_is_borrowed(grid: Lab):
    grid.file.write_text(MATRIX + "  - {name: warm, uses: prewarm}\n")
    same = ["train.steps=3", "train:matrix.lr=[0.1, 0.2]", "train.optimizer.lr='${{ matrix.lr }}'"]
    assert grid.load(*same).step("warm").borrows == "train@text=one,steps=1,lr=0.1"
    with pytest.raises(ConfigError) as caught:
        grid.load()
    assert "whose 4 steps differ in what 'warm' does for them; declare text, steps in the matrix" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "place", "says"),
    [
        ("steps: [1, 2]", "steps: 3", "13:21", "must be a list, not 3"),
        ("steps: [1, 2]", "steps: []", "13:21", "should have at least 1 item"),
        ("steps: [1, 2]", "steps: [1, 2, 1]", "13:28", "1 is given twice; remove one"),
        ("steps: [1, 2]", "in: [1, 2]", "13:14", "'in' can not name a part of a matrix"),
        ("steps: [1, 2]", "text: [one, three]", "13:14", "text comes with 'target', from which 'train' takes, as one"),
        ("matrix.steps", "matrix.stesp", "15:14", "the matrix has no 'stesp'; did you mean 'steps'?"),
        ("matrix.steps", "step", "15:14", "${{ step }} is no reference; write ${{ matrix.NAME }}"),
        ("${{ matrix.steps }}", "a${{ matrix.steps", "15:14", "a reference is not closed"),
        ("steps: [1, 2]", "steps: [1, x]", "15:14", 'must be a valid integer, not "x", in train@text=one,steps=x'),
        ("steps: [1, 2]", "steps: [1, 0]", "15:14", "steps must be at least 1, in train@text=one,steps=0"),
        ("uses: check\n    needs: [train]", "uses: evaluate\n    needs: []", "16:5", "add 'train' to its needs"),
    ],
)
def test_a_mistake_is_named_with_its_place(grid: Lab, old: str, new: str, place: str, says: str):
    grid.file.write_text(MATRIX.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        grid.load()
    assert str(caught.value).startswith(f"{grid.file}:{place}: ")
    assert says in str(caught.value)


def test_a_fault_of_a_combination_is_blamed_on_an_option_only_where_the_option_made_it(grid: Lab):
    with pytest.raises(UsageError) as caught:
        grid.load("train.gpus=${{ matrix.text }}")
    assert str(caught.value) == (
        '--set train.gpus=${{ matrix.text }}: must be a valid integer, not "one", in train@text=one,steps=1; '
        "a number has no quotes"
    )
    grid.file.write_text(MATRIX.replace("steps: [1, 2]", "steps: [0, 1]"))
    with pytest.raises(ConfigError, match=r":15:14: steps must be at least 1, in train@text=one,steps=0$"):
        grid.load("train.optimizer.lr=0.5")


def test_a_reference_without_a_matrix_says_what_to_give(lab: Lab):
    with pytest.raises(UsageError) as caught:
        lab.load("train.steps=${{ matrix.steps }}")
    assert "there is no matrix that has 'steps'; give the step one: matrix: {NAME: [...]}" in str(caught.value)


def test_which_of_two_matrices_go_together_must_be_told(lab: Lab):
    from dflash.pipeline.schema import load_pipeline
    from tests.pipeline.sample_kinds import KINDS, EvaluateConfig

    kinds = {**KINDS, "both": KINDS["evaluate"].__class__("both", EvaluateConfig, lambda step: {}, ("target", "train"))}
    first = MATRIX.partition("  - name: train")[0]
    lab.file.write_text(
        first + "  - {name: plain, uses: target}\n"
        "  - {name: train, uses: train, needs: [plain], matrix: {text: [two, three]}}\n"
        "  - {name: b, uses: both, needs: [target, train]}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_pipeline(lab.file, kinds)
    assert str(caught.value) == (
        f"{lab.file}:12:34: step 'b' takes from 'target', made for text one, two, and from 'train', made for text two, "
        "three: which go together can not be told; give both the same values, or name one of them otherwise than text"
    )


def test_a_matrix_of_more_steps_than_anyone_means_is_refused(grid: Lab):
    values = ",".join(map(str, range(1, 101)))
    with pytest.raises(UsageError, match=r"that makes 10,202 steps, and a pipeline has 10,000 at most"):
        grid.load(f"train:matrix.steps=[{values}]", f"target:matrix.text=[{values},101]")
