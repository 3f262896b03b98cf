"""A machine is planned and made so: the engine on this machine, with real commands and folders of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dflash.errors import BusyError, DFlashError, UsageError
from dflash.hosts import jobs
from dflash.hosts.chain import parse_chain
from dflash.hosts.command import Command
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.provision import applying
from dflash.provision.applying import provision
from dflash.provision.declaration import MachineSpec, MountSpec, PartSpec
from dflash.provision.fact import Fact, Facts, read
from dflash.provision.facts.files import text_of
from dflash.provision.facts.pythons import PYTHONS
from dflash.provision.failures import ActionFailed
from dflash.provision.operation import Action, Change, Kept
from dflash.provision.operations.limits import Limits
from dflash.provision.operations.uv import Uv
from dflash.provision.operations.writing import append_line, write_text
from dflash.provision.planning import Declared, Named, Stage
from tests.mounts import small_file_system


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host("here", parse_chain("local"), root=str(tmp_path / "root"))


def spec_of(tmp_path: Path, *names: str, **more: Any) -> MachineSpec:
    return MachineSpec(directories=[str(tmp_path / name) for name in names], **more)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, host: Host) -> Any:
    """Provision this machine with these operations, instead of those of a declaration."""

    def run(*operations: Any, name: str = "files", **options: Any) -> list[applying.Provisioned]:
        named = tuple(Named(name, each, f"operation {place}") for place, each in enumerate(operations))
        monkeypatch.setattr(applying, "stages", lambda *given: [Stage(host.chain, lambda login: named)])
        return provision(host, MachineSpec(), **options)

    return run


def outcomes(done: Sequence[applying.Provisioned], name: str = "") -> list[Any]:
    return [step.outcome for each in done for step in each.steps if name in ("", step.name)]


def test_a_second_run_changes_nothing_and_says_why_for_each(host: Host, tmp_path: Path):
    spec = spec_of(tmp_path, "data/a", "b")
    first = provision(host, spec, only=["directories"])
    assert [type(each) for each in outcomes(first)] == [Change] * 4
    assert (tmp_path / "data" / "a").is_dir()
    assert (tmp_path / "root").is_dir()
    told: list[str] = []
    second = provision(host, spec, only=["directories"], tell=told.append)
    assert [type(each) for each in outcomes(second)] == [Kept] * 4
    assert second[0].changes == 0
    assert told == [
        f"local directory {tmp_path / name}: it is there, a directory of {tmp_path.owner()}"
        for name in ("data/a", "b", "root", "root/tools")
    ]


def test_a_preview_is_a_diff_and_changes_nothing(host: Host, tmp_path: Path):
    told: list[str] = []
    done = provision(host, spec_of(tmp_path, "a"), only=["directories"], preview=True, tell=told.append)
    assert done[0].changes == 3
    assert told[:5] == [
        f"--- local directory {tmp_path}/a",
        "+++ as declared",
        "@@ -1 +1 @@",
        "-absent",
        "+a directory",
    ]
    assert list(tmp_path.iterdir()) == []


def test_the_pythons_of_a_machine_are_found(host: Host):
    version = subprocess.run(["python3", "--version"], capture_output=True, text=True).stdout.split()[1]
    with reach(host.chain) as here:
        assert read(here, [PYTHONS])[PYTHONS][0].version == version


def test_only_names_operations(host: Host, tmp_path: Path):
    with pytest.raises(UsageError, match=r"there is no operation 'directory'; did you mean 'directories'\?"):
        provision(host, spec_of(tmp_path), only=["directory"])


def test_a_machine_before_a_container_needs_a_container(host: Host, tmp_path: Path):
    with pytest.raises(UsageError, match="this has none; leave them out"):
        provision(host, spec_of(tmp_path, host=PartSpec(packages=["git"])))


def test_what_refuses_is_said_before_anything_is_done(host: Host, tmp_path: Path):
    (tmp_path / "a").write_text("in the way")
    spec = spec_of(tmp_path, "a", "b")
    preview = provision(host, spec, only=["directories"], preview=True)
    assert [str(each) for each in applying.refusals(preview)] == [
        f"{tmp_path}/a: there is a regular file, not a directory; move it away, or name another place"
    ]
    with pytest.raises(DFlashError, match="there is a regular file, not a directory"):
        provision(host, spec, only=["directories"])
    assert not (tmp_path / "b").exists()


# --- in order, each from what is true by then


@dataclass(frozen=True)
class File:
    """An operation that writes a file, with as many words as another file has by then."""

    path: Path
    source: Path
    actions: tuple[Action, ...] = ()

    def facts(self) -> Sequence[Fact[Any]]:
        return [text_of(str(self.path)), text_of(str(self.source))]

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        now, source = known[text_of(str(self.path))], known[text_of(str(self.source))]
        if source is None:
            raise DFlashError(f"{self.source.name} is not there", cure="write it")
        wanted = f"{len(source.split())}\n"
        if now == wanted:
            yield Kept(self.path.name, "it says so")
        else:
            yield Change(self.path.name, now or "", wanted, (*self.actions, write_text(str(self.path), wanted)))


def test_an_operation_is_planned_anew_once_something_has_changed(engine: Any, tmp_path: Path):
    (tmp_path / "words").write_text("one two three")
    first, second = File(tmp_path / "a", tmp_path / "words"), File(tmp_path / "b", tmp_path / "a")
    done = engine(first, second)
    assert (tmp_path / "a").read_text() == "3\n"
    assert (tmp_path / "b").read_text() == "1\n"
    assert done[0].changes == 2
    assert engine(first, second)[0].changes == 0


def test_what_refuses_until_something_is_changed_is_as_declared_in_a_preview(engine: Any, tmp_path: Path):
    (tmp_path / "words").write_text("one")
    operations = File(tmp_path / "a", tmp_path / "words"), File(tmp_path / "b", tmp_path / "a")
    preview = engine(*operations, preview=True)
    assert outcomes(preview)[1] == Declared("operation 1")
    assert applying.refusals(preview) == []


def test_a_command_that_fails_is_named_with_its_last_words_and_what_was_done(engine: Any, tmp_path: Path):
    (tmp_path / "words").write_text("one")
    failing = Action(("sh", "-c", "echo first >&2; echo second >&2; exit 3"))
    with pytest.raises(ActionFailed) as caught:
        engine(File(tmp_path / "a", tmp_path / "words"), File(tmp_path / "b", tmp_path / "words", (failing,)))
    assert str(caught.value) == (
        "local: b: sh … ended with 3, saying: first / second; done before: a; "
        "what was done stays; put this right there, and the same command goes on from here"
    )
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


def test_a_program_that_is_not_there_is_such_a_failure(engine: Any, tmp_path: Path):
    (tmp_path / "words").write_text("one")
    with pytest.raises(ActionFailed, match="b: no-such-program --now ended with 127, saying: no-such-program: No such"):
        engine(File(tmp_path / "b", tmp_path / "words", (Action(("no-such-program", "--now")),)))


def test_commands_that_end_well_and_change_nothing_are_a_failure(engine: Any, tmp_path: Path):
    (tmp_path / "words").write_text("one")
    operation = File(tmp_path / "a", tmp_path / "words")

    class Idle(File):
        def plan(self, known: Facts) -> Iterator[Change | Kept]:
            yield Change("a", "nothing", "something", (Action(("true",)),))

    with pytest.raises(ActionFailed, match="a: its commands ended well, and it still is: nothing"):
        engine(Idle(operation.path, operation.source))


# --- work that runs


def test_a_container_in_which_a_job_runs_is_not_stopped(engine: Any, host: Host, tmp_path: Path):
    (tmp_path / "words").write_text("one")
    stopping = File(tmp_path / "a", tmp_path / "words", (Action(("echo", "stop")),))
    live = File(tmp_path / "b", tmp_path / "words", (Action(("echo", "set")),))
    late = File(tmp_path / "c", tmp_path / "b", (Action(("echo", "stop")),))  # can be planned once there is b
    with reach(host.chain) as here:
        job = jobs.start(here, host, Command(["sleep", "60"]))
        try:
            told: list[str] = []
            assert engine(live, stopping, name="container", preview=True, tell=told.append)[0].changes == 2
            assert f"local would refuse: here: job {job} runs in the container, which would be stopped" in told[-1]
            with pytest.raises(BusyError, match=f"./inv stop {job} --host here"):
                engine(live, stopping, name="container")
            assert sorted(each.name for each in tmp_path.iterdir()) == ["root", "words"]
            with pytest.raises(BusyError, match="which would be stopped; done before: b; wait until"):
                engine(live, late, name="container")
        finally:
            jobs.stop(here, host, job, grace=0.0)


# --- files that are whole or not there


def test_a_file_is_written_with_its_folder_and_mode(engine: Any, tmp_path: Path):
    place = tmp_path / "etc" / "90-dflash.conf"
    engine(Limits({"memlock": "unlimited"}, str(place)))
    assert place.read_text().endswith("* - memlock unlimited\nroot - memlock unlimited\n")
    assert place.stat().st_mode & 0o777 == 0o644
    assert place.parent.stat().st_mode & 0o777 == 0o755
    assert [each.name for each in place.parent.iterdir()] == [place.name]


def test_a_file_of_which_not_all_came_is_not_put_in_its_place(tmp_path: Path):
    place = tmp_path / "file"
    place.write_text("before")
    words = write_text(str(place), "all of it").argv
    done = subprocess.run(words, input=b"all of", capture_output=True)
    assert done.returncode == 1
    assert b"of 9 bytes not all came" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert place.read_text() == "before"


def test_a_line_is_added_to_a_file_of_which_all_else_stays(tmp_path: Path):
    table = tmp_path / "fstab"

    def add(line: str) -> None:
        subprocess.run(append_line(str(table), line).argv, check=True)

    add("-a\\040b /x none bind 0 0")
    assert table.read_bytes() == b"-a\\040b /x none bind 0 0\n"
    table.write_bytes("# disque de données".encode("latin-1"))
    for line in ("one % two", "%s", "one % two"):
        add(line)
    assert table.read_bytes() == "# disque de données\none % two\n%s\n".encode("latin-1")


def test_a_program_that_may_not_be_run_is_put_there_anew(engine: Any, tmp_path: Path):
    tool, place = tmp_path / "tool", tmp_path / "root" / "uv"
    tool.write_text("#!/bin/sh\necho uv 7.8.9\n")
    place.parent.mkdir()
    place.write_text(tool.read_text())
    assert engine(Uv(str(place), "7.8.9", tool, tool.stat().st_size, os.uname().machine))[0].changes == 1
    assert place.stat().st_mode & 0o777 == 0o755


def test_a_program_of_this_machine_is_put_there_and_runs(engine: Any, tmp_path: Path):
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho uv 7.8.9\n")
    uv = Uv(str(tmp_path / "root/tools/uv"), "7.8.9", tool, tool.stat().st_size, os.uname().machine)
    assert engine(uv)[0].changes == 1
    assert engine(uv)[0].changes == 0


def test_a_folder_is_bound_and_stays_so_at_a_place_behind_a_link_too(host: Host, tmp_path: Path):
    with small_file_system(tmp_path / "small", "1m"):  # skips where nobody may mount
        (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path)
    place = tmp_path / "link" / "place"
    spec = MachineSpec(mounts={str(place): MountSpec(source=str(tmp_path / "data"))})
    try:
        assert provision(host, spec, only=["mounts"])[0].changes == 1
        assert (place / "file").read_text() == "x"
        assert provision(host, spec, only=["mounts"])[0].changes == 0
    finally:
        subprocess.run(["umount", str(place)], check=True)
