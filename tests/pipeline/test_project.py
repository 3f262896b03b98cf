"""Relative `inputs` go along with a run that is sent elsewhere, and are there where they are here."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash.errors import UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.pipeline.away import NotThere, Order, Ready, again, prepare
from dflash.pipeline.belongings import parcel
from dflash.pipeline.errand import load_errand
from dflash.pipeline.following import fetch, follow
from dflash.pipeline.keys import HOME, observe
from dflash.pipeline.launching import launch
from dflash.pipeline.project import Input, inputs_of, patterns_of, project_of
from dflash.pipeline.schema import load_pipeline
from dflash.pipeline.source import origin_of
from dflash.pipeline.steps import KINDS
from dflash.pipeline.view import Lines
from tests.pipeline.lab import Lab

COUNT = """\
name: count
steps:
  - name: count
    uses: command
    inputs: ["{above}/rows/*.txt", README.md]
    with: {{argv: [sh, -c, 'cat "$DFLASH_PROJECT"/{above}/rows/*.txt; wc -c < "$DFLASH_PROJECT/README.md"']}}
"""


@pytest.fixture
def count(lab: Lab) -> Lab:
    """A pipeline that reads files which lie beside the project, and one of the project."""
    (lab.root / "rows").mkdir()
    (lab.root / "rows" / "a.txt").write_text("first\n")
    (lab.root / "rows" / "b.txt").write_text("second\n")
    lab.file.write_text(COUNT.format(above=os.path.relpath(lab.root, HOME)))
    return lab


def order(lab: Lab) -> Order:
    host = Host("there", parse_chain("local"), str(lab.root / "far"))
    return Order(
        load_pipeline(lab.file, KINDS), (), host, HOME / "envs" / "local", check=lambda host, pipeline, hosts: None
    )


def files(ready: Ready) -> Any:
    return ready.plan.steps[0].fields["files"]


def test_inputs_that_no_source_has_are_sent_and_found_by_key_and_by_program(count: Lab):
    with reach(parse_chain("local")) as there:
        with pytest.raises(NotThere, match=r"rows/\*\.txt has not been sent yet"):
            prepare(there, order(count), looks_only=True)
        ready = prepare(there, order(count))
        (sent,) = ready.request["inputs"]
        assert sorted(each.name for each in Path(sent["place"]).rglob("*.txt")) == ["a.txt", "b.txt"]
        assert files(ready) == observe(order(count).pipeline).files["count"]
        errand, folder = launch(there, ready, count.root)
        job, failure = follow(errand, Lines(io.StringIO()))
        assert (job.code, failure) == (0, None)
        fetch(errand, job, folder)
        words = (folder / "logs" / "count.log").read_text().split()
        assert words == ["first", "second", str((HOME / "README.md").stat().st_size)]
        resumed = again(there, load_errand(count.root, errand.run), origin_of(folder))
        assert [each.status for each in resumed.plan.steps] == ["skip"]
        (count.root / "rows" / "b.txt").write_text("another\n")
        ready = prepare(there, order(count))
        assert [each.status for each in ready.plan.steps] == ["run"]
        assert files(ready) == observe(order(count).pipeline).files["count"]


def test_an_input_that_is_nowhere_is_named_with_its_place(count: Lab):
    for path in (count.root / "rows").iterdir():
        path.unlink()
    with reach(parse_chain("local")) as there, pytest.raises(UsageError, match=r":5:\d+: no file matches"):
        prepare(there, order(count))


# --- what goes along, and what is made of it


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A project with data that its source does not have, in folders of their own and among what it has."""
    for name in ("project/dflash/one.py", "project/data/small.txt", "project/data/deep/kept.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    for name in ("project/data/big.txt", "project/data/deep/er/big.txt", "beside/x.txt", "project/own/y.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path / "project"


SENT = {"dflash/one.py", "data/small.txt", "data/deep/kept.txt"}


def pipeline(lab: Lab, *patterns: str) -> Any:
    lab.file.write_text(f"name: p\nsteps: [{{name: s, uses: check, inputs: {list(patterns)}}}]\n")
    return lab.load()


def sent(found: Iterator[Input]) -> dict[str, tuple[int, list[str]]]:
    return {each.name: (each.up, sorted(parcel(each).files)) for each in found}


def test_only_what_the_source_does_not_have_goes_along(home: Path):
    patterns = ("data", "data/**/*.txt", "../beside", "own/y.txt", "dflash/*.py", "data/../own/*", str(home / "own"))
    assert sent(inputs_of(patterns, SENT, home)) == {
        "data": (0, ["data/big.txt", "data/deep/er/big.txt"]),
        "data/**/*.txt": (0, ["data/big.txt", "data/deep/er/big.txt"]),
        "../beside": (1, ["beside/x.txt"]),
        "own/y.txt": (0, ["own/y.txt"]),
        "data/../own/*": (0, ["own/y.txt"]),
    }


def test_what_lies_behind_a_link_of_the_source_does_not_go_along_again(home: Path):
    (home / "linked").symlink_to("data")
    assert sent(inputs_of(["linked/*.txt"], SENT | {"linked"}, home)) == {"linked/*.txt": (0, ["linked/big.txt"])}


def test_the_project_there_has_everything_in_its_place(lab: Lab, home: Path, tmp_path: Path):
    loaded = pipeline(lab, "data", "../beside/*.txt", "own")
    source, places = tmp_path / "there" / "code", []
    for name in SENT:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((home / name).read_bytes())
    for each in inputs_of(patterns_of(loaded), SENT, home):
        packed = parcel(each)
        place = tmp_path / "there" / "data" / packed.id
        for name, path in packed.files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(path.read_bytes())
        places.append({"place": str(place), "up": each.up})
    assert project_of({}, tmp_path, source) == source
    made = project_of({"inputs": places}, tmp_path / "there", source)
    assert made == project_of({"inputs": places}, tmp_path / "there", source)
    assert observe(loaded, made).files == observe(loaded, home).files
    assert (made / "dflash" / "one.py").resolve() == source / "dflash" / "one.py"
    # nothing is written into the source
    assert sorted(each.name for each in (source / "data" / "deep").iterdir()) == ["kept.txt"]
    assert [each.name for each in (tmp_path / "there" / "inputs").iterdir()] == [made.parent.name]
