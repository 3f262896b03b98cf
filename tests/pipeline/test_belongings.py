"""What a pipeline names outside itself: what goes along, under which name, and what must be there already."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dflash.errors import UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.reach import reach
from dflash.pipeline.belongings import Belonging, belongings, look, override, parcel, place_of, require, send
from dflash.pipeline.keys import HOME
from dflash.pipeline.kinds import load_kinds
from dflash.pipeline.schema import load_pipeline


@pytest.mark.parametrize(
    ("name", "files", "named"),
    [
        ("rows.jsonl", ["rows.jsonl"], "rows.jsonl"),
        ("set", ["set/a.jsonl", "set/deep/b.jsonl"], "set"),
        ("set/*.jsonl", ["a.jsonl"], "*.jsonl"),
        ("s*/**/*.jsonl", ["set/a.jsonl", "set/deep/b.jsonl"], "s*/**/*.jsonl"),
        ("set/deep/..", ["set/a.jsonl", "set/deep/b.jsonl"], "set"),
        ("set/../rows.jsonl", ["rows.jsonl"], "rows.jsonl"),
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


@pytest.mark.parametrize(("name", "named"), [(".", "deep"), ("..", "set"), ("../", "set"), ("../deep/..", "set")])
def test_a_folder_that_is_named_by_dots_alone_has_its_own_name_there(
    name: str, named: str, tmp_path: Path, monkeypatch
):
    (tmp_path / "set" / "deep").mkdir(parents=True)
    (tmp_path / "set" / "deep" / "b.jsonl").touch()
    monkeypatch.chdir(tmp_path / "set" / "deep")
    packed = parcel(Belonging("data.file", name))
    assert packed.named == named
    assert [file.rpartition("/")[2] for file in packed.files] == ["b.jsonl"]


def test_a_path_that_is_nowhere_is_named_by_its_setting(tmp_path: Path):
    with pytest.raises(UsageError, match=r"^train.start: absent is not on this machine; a relative path is sent along"):
        parcel(Belonging("train.start", "absent"))
    (tmp_path / "it's [here] $HOME.jsonl").touch()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "rows.jsonl").touch()
    files = ["it's*.jsonl", "it's [here] $HOME.jsonl", "absent; id", "**/er/*.jsonl", "deep/**/rows.jsonl", "**/no"]
    names = [str(tmp_path / name) for name in files]
    with reach(parse_chain("local")) as there:
        home, found = look(there, names)
    assert (home, [found[name] for name in names]) == (os.environ["HOME"], [True, True, False, True, True, False])
    with pytest.raises(UsageError, match=r"^gpu1: data.file: .*/absent; id is not there; put it there"):
        require([Belonging("data.file", names[2])], found, "gpu1")


@pytest.mark.parametrize("name", ["\U0001f600.jsonl", "é\u2028\x85.jsonl", "a b'\"\\: #.jsonl", "a\nb  c.jsonl"])
def test_any_name_that_is_text_arrives_in_the_setting(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(name).touch()
    packed = parcel(setting := Belonging("data.file", name))
    loaded = load_pipeline(HOME / "pipelines" / "local.yaml", load_kinds(), [override(setting, "/r", packed)])
    assert loaded.step("data").config.file == f"/r/data/{packed.id}/{name}"


def test_a_name_that_is_empty_or_no_text_is_refused(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^data.file: an empty name is none; name a file"):
        parcel(Belonging("data.file", ""))
    Path("set").mkdir()
    Path("set", os.fsdecode(b"\xff.jsonl")).touch()
    with pytest.raises(UsageError, match=r"^data.file: a name here is not UTF-8: .*\\xff.jsonl.*; rename it$"):
        parcel(Belonging("data.file", "set"))


def test_what_was_changed_before_it_was_sent_gets_no_place_there(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("first")
    packed = parcel(setting := Belonging("data.file", "rows.jsonl"))
    Path("rows.jsonl").write_text("other")
    with reach(parse_chain("local")) as there:
        with pytest.raises(UsageError, match=r"^data.file: rows.jsonl was changed before it was sent; run this again"):
            send(there, str(tmp_path / "far"), setting, packed)
        assert not Path(place_of(str(tmp_path / "far"), packed)).exists()
        Path("rows.jsonl").write_text("first")
        send(there, str(tmp_path / "far"), setting, packed)
    assert (Path(place_of(str(tmp_path / "far"), packed)) / "rows.jsonl").read_text() == "first"


def test_the_pipelines_own_settings_that_are_paths_are_known():
    loaded = load_pipeline(HOME / "pipelines" / "dflash-8gpu.yaml", load_kinds(), ["train.start=drafts/one"])
    assert [(each.setting, each.is_there) for each in belongings(loaded)] == [
        ("target.folder", True),
        ("data.file", True),
        ("train.start", False),
    ]


def test_a_setting_that_a_matrix_chooses_goes_along_only_if_it_is_one_path(tmp_path: Path):
    text = (
        "name: x\nsteps:\n  - {name: target, uses: target}\n"
        "  - {name: data, uses: data, needs: [target], matrix: {n: [1, 2]}, with: {file: FILE}}\n"
    )
    file = tmp_path / "x.yaml"

    def found(name: str) -> list[tuple[str, str]]:
        file.write_text(text.replace("FILE", name))
        return [(each.setting, each.name) for each in belongings(load_pipeline(file, load_kinds()))]

    assert found("a.jsonl") == [("data.file", "a.jsonl")]
    assert found('"/data/${{ matrix.n }}.jsonl"') == [("data.file", "/data/1.jsonl"), ("data.file", "/data/2.jsonl")]
    with pytest.raises(UsageError) as caught:
        found('"${{ matrix.n }}.jsonl"')
    assert str(caught.value) == (
        "data.file: a matrix chooses 1.jsonl among others; put them there (./inv put), and name them by absolute paths"
    )
