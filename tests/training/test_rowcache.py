"""Rows kept by what they were made from: taken when all of it is the same, made anew when any of it is not."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from dflash.progress import Silent
from dflash.training import rowcache
from dflash.training.dataconfig import DataConfig
from dflash.training.dataset import build_dataset
from dflash.training.packing import load_rows
from dflash.training.rowcache import RowCache

TAKEN = "the same text was encoded in the same way before: its rows are taken"


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, message: str) -> None:
        self.lines.append(message)


class Place:
    """A folder of data, a target with its tokenizer, a cache, and a new folder for each build."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder, self.target, self.cache = folder, folder / "target", folder / "cache"
        self.target.mkdir()
        for file in target.iterdir():
            if "token" in file.name or "template" in file.name:
                shutil.copy(file, self.target)
        self.data = folder / "data"
        self.data.mkdir()
        for name in ("a", "b"):
            lines = [{"id": f"{name}{n}", "text": f"some text {n} of {name}"} for n in range(30)]
            (self.data / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.builds = 0

    def build(self, **changes: Any) -> tuple[bool, bytes, dict[str, Any]]:
        """Whether rows were taken from the cache, their bytes, and the report."""
        self.builds += 1
        out = self.folder / f"out-{self.builds}"
        out.mkdir()
        settings = {"file": str(self.data), "buckets": (32, 64), "block": 4, "heldout": 3, "corpus_bytes": 600_000}
        notes = Notes()
        report = build_dataset(DataConfig(**settings | changes), self.target, out, notes, self.cache)
        assert report == json.loads((out / "report.json").read_text())
        made = {"heldout.jsonl", "heldout.safetensors", "report.json", "rows.safetensors"}
        assert {path.name for path in out.iterdir()} == made
        return TAKEN in notes.lines, (out / "rows.safetensors").read_bytes(), report


@pytest.fixture
def place(tmp_path: Path, target_folder: Path) -> Place:
    return Place(tmp_path, target_folder)


def same_size_and_time(path: Path, content: bytes) -> None:
    """Write over a file so that only its bytes tell."""
    before = path.stat()
    assert len(content) == before.st_size
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_the_same_is_not_made_twice(place: Place):
    first, second = place.build(), place.build(device="cpu", prompts=7)
    assert (first[0], second[0]) == (False, True)
    assert first[1:] == second[1:]


def edit_data(place: Place) -> None:
    path = place.data / "b.jsonl"
    same_size_and_time(path, path.read_bytes().replace(b"text 7 of", b"TEXT 7 of"))


def add_data(place: Place) -> None:
    shutil.copy(place.data / "a.jsonl", place.data / "c.jsonl")


def edit_tokenizer(place: Place) -> None:
    """Two bytes change places, so that size and names stay."""
    path = place.target / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(tokenizer))


def edit_template(place: Place) -> None:
    path = place.target / "chat_template.jinja"
    same_size_and_time(path, path.read_bytes().replace(b"<|assistant|>{% generation", b"<|assistan?|>{% generation"))


def test_an_edit_of_anything_that_rows_are_made_from_makes_them_anew(place: Place):
    rows = [place.build()[1]]
    for edit in (edit_data, add_data, edit_tokenizer, edit_template):
        edit(place)
        taken, made, _ = place.build()
        assert not taken, edit.__name__
        rows.append(made)
    assert len(set(rows[:-1])) == 4
    assert rows[-1] == rows[-2]  # no conversation is in it, but one might have been


def test_another_setting_that_decides_the_rows_makes_them_anew(place: Place):
    place.build()
    others: list[dict[str, Any]] = [{"buckets": (48,)}, {"block": 8}, {"heldout": 2}, {"mask_token_id": 260}]
    for changes in [*others, {"seed": 1}]:
        assert not place.build(**changes)[0], changes
    assert all(place.build(**changes)[0] for changes in others)


def test_other_code_makes_them_anew(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    place.build()
    code = tmp_path / "code"
    shutil.copytree(Path(rowcache.__file__).parent, code)
    monkeypatch.setattr(rowcache, "__file__", str(code / "rowcache.py"))
    assert place.build()[0]
    with (code / "records.py").open("a") as file:
        file.write("\n")
    assert not place.build()[0]


def test_the_code_that_reads_and_encodes_is_all_in_the_key():
    """What `dataset` imports of this room, but for what only answers prompts or holds settings."""
    home = Path(rowcache.__file__).parent
    found, waiting = set(), ["dataset"]
    while waiting:
        name = waiting.pop()
        if name not in found and (home / f"{name}.py").exists():
            found.add(name)
            lines = (home / f"{name}.py").read_text().splitlines()
            words = [line.split() for line in lines if line.startswith("from dflash.training")]
            waiting += [w[1].rpartition(".")[2] if w[1] != "dflash.training" else w[3] for w in words]
    assert found - {"answering", "serving", "config", "dataconfig"} == set(rowcache._CODE)


@pytest.mark.parametrize("name", ["rows.safetensors", "report.json", "entry.json"])
def test_what_was_changed_in_the_cache_is_not_taken(place: Place, name: str):
    whole = place.build()
    (entry,) = place.cache.iterdir()
    with (entry / name).open("ab") as file:
        file.write(b"}")
    assert place.build()[:2] == (False, whole[1])
    assert place.build()[0]


def test_a_cache_on_another_disk_is_copied(place: Place, monkeypatch: pytest.MonkeyPatch):
    def refuse(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    first, second = place.build(), place.build()
    assert (second[0], second[1]) == (True, first[1])


def test_rows_in_the_cache_outlive_the_folder_they_were_made_in(place: Place):
    whole = place.build()
    shutil.rmtree(place.folder / "out-1")
    assert place.build()[:2] == (True, whole[1])
    assert list(load_rows(place.folder / "out-2" / "rows.safetensors")) == [32]


def test_an_unknown_key_is_nothing(tmp_path: Path):
    assert not RowCache(tmp_path / "none").restore("0" * 64, tmp_path)
    assert list(tmp_path.iterdir()) == []
