"""What a step's folder holds when it is finished, and what of it is no output."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from dflash.errors import DataError
from dflash.pipeline.process import _printable
from dflash.pipeline.store import Attempt, Store, observed_in

TRY = Attempt("work", "k" * 64, "first", "run", {})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path)
    (made.begin(TRY) / "made.txt").write_text("made")
    return made


def test_a_pipe_is_no_output_and_what_became_one_has_changed(store: Store):
    place = store.folder(TRY.kind, TRY.key)
    os.mkfifo(place / "pipe")
    (place / "empty").touch()
    done = store.finish(TRY, {}, {}, 1.0)
    assert [each.path for each in done.outputs] == ["empty", "made.txt"]
    (place / "empty").unlink()
    os.mkfifo(place / "empty")
    assert store.look(TRY.kind, TRY.key).damage == ("output empty has changed",)


def test_a_name_that_can_not_be_written_down_is_told(store: Store):
    place = store.folder(TRY.kind, TRY.key)
    (place / os.fsdecode(b"a\xff.txt")).touch()
    with pytest.raises(DataError, match=r"the name of its file 'a\\udcff\.txt' is not UTF-8; give it another name"):
        store.finish(TRY, {}, {}, 1.0)


def test_a_link_to_such_a_name_is_an_output_as_any_other(store: Store):
    (store.folder(TRY.kind, TRY.key) / "link").symlink_to(os.fsdecode(b"a\xff.txt"))
    assert [each.path for each in store.finish(TRY, {}, {}, 1.0).outputs] == ["link", "made.txt"]


def test_what_a_step_says_of_such_a_name_can_be_written_down():
    said = _printable({"message": "reads \udcff.txt", "values": [{"\udcff": 1}, "\U0001f600"]})
    assert said == {"message": "reads \\udcff.txt", "values": [{"\\udcff": 1}, "\U0001f600"]}


def test_what_was_observed_lies_beside_what_an_older_version_reads(store: Store):
    place = store.folder(TRY.kind, TRY.key)
    done = store.finish(TRY, {}, {}, 1.0, {"libraries": {"libc.so.6": "abc"}})
    assert [each.path for each in done.outputs] == ["made.txt"]
    assert observed_in(place) == {"libraries": {"libc.so.6": "abc"}}
    assert "observed" not in json.loads((place / "done.json").read_text())
    store.begin(TRY)
    assert observed_in(place) == {}


def test_what_a_newer_version_tells_of_a_finished_step_is_passed_over(store: Store):
    done = store.finish(TRY, {}, {}, 1.0)
    file = store.folder(TRY.kind, TRY.key) / "done.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "told": "more"}))
    assert Store(store.root).look(TRY.kind, TRY.key).done == done
    assert done.finished <= time.time()
