"""Several processes that run the tests never wait for one another's lab."""

from __future__ import annotations

import pytest

pytest.importorskip("xdist")

from tests.sharing import LAB, share_of, turn_of


def test_whatever_uses_the_lab_is_one_share_and_begins_at_once():
    for file in ("lab/test_lab.py", "hosts/test_jobs.py", "environments/test_making.py", "pipeline/test_train_away.py"):
        assert share_of(f"tests/{file}") == LAB
        assert turn_of(f"tests/{file}") == 0


def test_every_other_file_is_a_share_of_its_own_and_what_takes_long_comes_before_the_rest():
    for file, turn in (("training/test_trainer.py", 1), ("test_inv.py", 1), ("model/test_mask.py", 2)):
        assert share_of(f"tests/{file}") == f"tests/{file}"
        assert turn_of(f"tests/{file}") == turn
