"""What a condition may say, and that it can do nothing."""

from __future__ import annotations

import pytest

from dflash.pipeline.condition import WhenFault, check_when

NEEDS = {"train": ["train"], "many": ["many@seed=1", "many@seed=2"]}


@pytest.mark.parametrize(
    ("when", "offset", "says"),
    [
        ("matrix.seed = 1", 0, "this is no condition: "),
        ("matrix.seed ==", 13, "this is no condition: "),
        ("host.gpus + 1 > 3", 0, "a condition has no arithmetic"),
        ("true and open('/etc/passwd')", 9, "a condition has no calls"),
        ("[x for x in 'a']", 0, "a condition has no listcomp"),
        ("'é' == host.name and matrix.lr.real > 0", 21, "matrix has no 'lr.real'"),
        ("f'{host.name}' == 'a'", 0, "a condition has no f-strings"),
        ("host.name is 'a'", 0, "a condition has no 'is'"),
        ("host.name == b'a'", 13, "a condition has no"),
        ("host.__class__", 0, "host has no '__class__'"),
        ("matrix", 0, "say which of matrix"),
        ("matrix.sed == 1", 0, "matrix has no 'sed'"),
        ("secrets.TOKEN", 0, "there is no 'secrets' to ask for"),
        ("steps.train", 0, "of a step, say what: steps.train.status"),
        ("steps.far.status == 'ok'", 0, "'far' is none of the steps that this one needs"),
        ("host.gpus and steps.tran.status", 14, "there is no step 'tran'"),
        ("steps.many.status == 'ok'", 0, "'many' stands for 2 steps, so has no one outcome"),
        ("${{ matrix.seed }} == 1", 0, "a condition reads the matrix as it is"),
        ("failed", 0, "only a step of finally: may ask"),
        ("(" * 900 + "1" + ")" * 90, 0, "this is no condition"),
        ("1 or " * 300, 0, "a condition has 1000 characters at most"),
    ],
)
def test_what_is_no_condition_is_named_with_its_place(when: str, offset: int, says: str):
    with pytest.raises(WhenFault) as caught:
        check_when(when, ["seed", "lr"], NEEDS, ["train", "many", "far"], is_last=False)
    assert caught.value.what.startswith(says)
    assert says.startswith("this is no condition") or caught.value.offset == offset


@pytest.mark.parametrize(
    ("when", "cure"),
    [
        ("matrix.seed = 1", "write == for equal"),
        ("matrix.seed == 1 && matrix.lr < 1", "write and, or, not for &&, ||, !"),
        ("matrix.seed ==", "write comparisons of names and values, joined by and, or, not"),
        ("steps.a-b.status == 'ok'", "write steps['a-b'] for steps.a-b"),
        ("steps.1st.status == 'ok'", "write steps['1st'] for steps.1st"),
        ("steps.import.status == 'ok'", "write steps['import'] for steps.import"),
        ("steps.train.status == 'okay'", "did you mean 'ok'?"),
        ("'success' == steps.train.status", "known statuses: blocked, failed, interrupted, left out, ok, pending"),
        ("steps['train'].status not in ['ok', 'faild']", "did you mean 'failed'?"),
    ],
)
def test_what_is_no_condition_is_named_with_what_to_write(when: str, cure: str):
    with pytest.raises(WhenFault) as caught:
        check_when(when, ["seed", "lr"], NEEDS, ["train"], is_last=False)
    assert caught.value.cure == cure
