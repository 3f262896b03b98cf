"""What a pipeline names outside itself: what goes along, under which name, and what must be there already."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dflash.errors import UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.reach import reach
from dflash.pipeline.belongings import Belonging, belongings, look, override, parcel, require
from dflash.pipeline.keys import HOME


@pytest.mark.parametrize(
    ("name", "files", "named"),
    [
        ("rows.jsonl", ["rows.jsonl"], "rows.jsonl"),
        ("set", ["set/a.jsonl", "set/deep/b.jsonl"], "set"),
        ("set/*.jsonl", ["a.jsonl"], "*.jsonl"),
        ("s*/**/*.jsonl", ["set/a.jsonl", "set/deep/b.jsonl"], "s*/**/*.jsonl"),
    ],
)
def test_a_relative_path_goes_along(name: str, files: list[str], named: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set" / "deep").mkdir(parents=True)
    for file in ("rows.jsonl", "set/a.jsonl", "set/deep/b.jsonl"):
        (tmp_path / file).write_text(file)
    setting = Belonging("data.file", name)
    packed = parcel(setting)
    assert (sorted(packed.files), packed.named) == (files, named)
    assert override(setting, "/root/x", packed) == f'data.file="/root/x/data/{packed.id}/{named}"'


def test_a_path_that_is_nowhere_is_named_by_its_setting(tmp_path: Path):
    with pytest.raises(UsageError, match=r"^train.start: absent is not on this machine; a relative path is sent along"):
        parcel(Belonging("train.start", "absent"))
    (tmp_path / "it's [here] $HOME.jsonl").touch()
    with reach(parse_chain("local")) as there:
        names = [str(tmp_path / "it's*.jsonl"), str(tmp_path / "it's [here] $HOME.jsonl"), str(tmp_path / "absent; id")]
        home, found = look(there, names)
    assert (home, [found[name] for name in names]) == (os.environ["HOME"], [True, True, False])
    with pytest.raises(UsageError, match=r"^gpu1: data.file: .*/absent; id is not there; put it there"):
        require([Belonging("data.file", names[2])], found, "gpu1")


def test_the_pipelines_own_settings_that_are_paths_are_known():
    from dflash.pipeline.kinds import load_kinds
    from dflash.pipeline.schema import load_pipeline

    loaded = load_pipeline(HOME / "pipelines" / "dflash-8gpu.yaml", load_kinds(), ["train.start=drafts/one"])
    assert [(each.setting, each.is_there) for each in belongings(loaded)] == [
        ("target.folder", True),
        ("data.file", True),
        ("train.start", False),
    ]
