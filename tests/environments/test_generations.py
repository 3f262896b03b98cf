"""Generations of environments: made whole, switched in one step, and never removed while somebody needs them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import threading
from pathlib import Path

import pytest

from dflash.environments.remote import HostEnvironments, on_host
from dflash.errors import UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from tests.environments.conftest import declare
from tests.lab.service import wait_until

REPOSITORY = Path(__file__).parents[2]


def tree(place: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below a folder: mode, time and content."""
    found = {}
    for path in sorted(place.rglob("*")):
        if path.is_file() and not path.is_symlink():
            status = path.stat()
            found[str(path.relative_to(place))] = (status.st_mode, status.st_mtime_ns, path.read_bytes())
    return found


def path_of(environments: HostEnvironments, identity: str) -> Path:
    return next(Path(row["path"]) for row in reversed(environments.listed()) if row["id"] == identity)


def test_using_and_going_back(environments: HostEnvironments, folder: Path, wheels: Path):
    first = environments.create(folder, wheels=wheels).id
    second = environments.create(folder, wheels=wheels, again=True).id
    assert second == f"{first}-2"
    assert environments.use("small", first)["current"] == first, "an id is that one alone"
    assert environments.use("small", first[:15])["current"] == second, "of a beginning, the newest is meant"
    root = path_of(environments, first).parent
    assert os.readlink(root / "current") == second
    assert environments.rollback("small")["current"] == first
    with pytest.raises(UsageError, match="no earlier generation"):
        environments.rollback("small")
    environments.use("small", second)
    third = environments.create(folder, wheels=wheels, again=True).id
    environments.use("small", third)
    assert environments.rollback("small")["current"] == second
    assert os.readlink(root / "current") == second


def test_what_somebody_needs_is_never_removed(environments: HostEnvironments, folder: Path, wheels: Path):
    ids = [environments.create(folder, wheels=wheels, again=number > 0).id for number in range(7)]
    environments.use("small", ids[3])
    environments.use("small", ids[4])
    environments.pin("small", ids[1], "20260101T000000-run")
    place = path_of(environments, ids[2])
    with subprocess.Popen([place / "bin/python", "-c", "import time; time.sleep(60)"]) as user:
        try:
            done = {row["id"]: (row["removed"], row["why"]) for row in environments.gc("small")}
        finally:
            user.kill()
    assert done == {
        ids[0]: (True, "nobody needs it"),
        ids[1]: (False, "pinned by run 20260101T000000-run"),
        ids[2]: (False, f"process {user.pid} runs from it"),
        ids[3]: (False, "the one to go back to"),
        ids[4]: (False, "in use"),
        ids[5]: (True, "nobody needs it"),
        ids[6]: (False, "the one made last"),
    }
    assert sorted(row["id"] for row in environments.listed()) == sorted([*ids[1:5], ids[6]])
    environments.pin("small", "", "20260101T000000-run")
    assert [row["id"] for row in environments.gc("small") if row["removed"]] == [ids[1], ids[2]]


def test_only_the_name_of_an_environment_that_is_there_is_taken(
    environments: HostEnvironments, folder: Path, wheels: Path, host: Host
):
    made = environments.create(folder, wheels=wheels).id
    environments.use("small", made)
    before = tree(Path(str(host.root)))
    for name in ("", ".", "..", "small/x", "smal", "-rf"):
        for act in (environments.gc, environments.rollback, lambda name: environments.use(name, made)):
            with pytest.raises(UsageError, match=r"can not be the name|there is no environment"):
                act(name)
        assert tree(Path(str(host.root))) == before, name
    with pytest.raises(UsageError, match="can not be the name of a run"):
        environments.pin("small", made, "../../evil")
    assert tree(Path(str(host.root))) == before


def test_a_generation_is_in_use_by_its_real_path_its_link_and_a_shell_that_activated_it(
    tmp_path: Path, folder: Path, wheels: Path
):
    """The host's root is a link, as /home is on many machines."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    host = Host("here", parse_chain("local"), root=str(tmp_path / "home" / "root"))
    with on_host(host) as environments:
        ids = [environments.create(folder, wheels=wheels, again=number > 0).id for number in range(3)]
        environments.use("small", ids[2])
        base = tmp_path / "disk" / "root" / "envs" / "small"
        activated = {
            **os.environ,
            "VIRTUAL_ENV": str(base / ids[1]),
            "PATH": f"{base / ids[1]}/bin:{os.environ['PATH']}",
        }
        sleep = ["-c", "import torch, time; time.sleep(60)"]
        with (
            subprocess.Popen([str(base / ids[0] / "bin" / "python"), *sleep]) as first,
            subprocess.Popen(["python", *sleep], env=activated) as second,
        ):
            try:
                kept = {row["id"]: row["why"] for row in environments.gc("small") if not row["removed"]}
            finally:
                first.kill()
                second.kill()
        runs_from = {ids[0]: f"process {first.pid} runs from it", ids[1]: f"process {second.pid} runs from it"}
        assert kept == {**runs_from, ids[2]: "in use"}


def test_verifying_makes_no_generation_newer(environments: HostEnvironments, folder: Path, wheels: Path):
    first = environments.create(folder, wheels=wheels).id
    second = environments.create(folder, wheels=wheels, again=True).id
    place = path_of(environments, first)
    before = tree(place)
    environments.verify(folder, str(place), "cached")
    assert tree(place) == before
    assert environments.use("small", first[:15])["current"] == second


def test_a_current_generation_that_is_gone_blocks(environments: HostEnvironments, folder: Path, wheels: Path):
    environments.use("small", environments.create(folder, wheels=wheels).id)
    (row,) = environments.listed()
    Path(row["path"]).rename(Path(row["path"]).with_name("gone"))
    (row,) = environments.listed()
    assert (row["current"], row["finished"]) == (True, False)
    findings, _ = environments.verify(folder, row["path"])
    assert [(each.severity, each.name) for each in findings] == [("block", "no-record")]


def test_who_waits_for_another_is_told_at_once(host: Host, folder: Path, wheels: Path):
    told: list[str] = []
    with on_host(host, told.append) as environments:
        made = environments.create(folder, wheels=wheels).id
        waiter = threading.Thread(target=environments.use, args=("small", made))
        with (Path(str(host.root)) / "envs" / "small" / ".lock").open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            waiter.start()
            wait_until(lambda: told, "the word that it waits")
        waiter.join()
        assert "another process is at work" in told[0]
        assert environments.listed()[0]["current"]


def test_making_using_and_removing_one_changes_no_byte_of_the_other(
    host: Host, environments: HostEnvironments, folder: Path, wheels: Path, tmp_path: Path
):
    first = path_of(environments, environments.create(folder, wheels=wheels).id)
    environments.use("small", first.name)
    before = tree(first.parent)
    serve = declare(tmp_path / "envs" / "serve", tmp_path / "other", "serve")
    made = environments.create(serve, wheels=tmp_path / "other").id
    environments.use("serve", made)
    place = Path(str(host.root)) / "envs" / "serve" / made
    subprocess.run([place / "bin/python", "-c", "import torch, numpy"], check=True)
    for file in place.rglob("numpy/core.py"):  # in place: a hard link would carry it into the other one
        with file.open("ab") as stream:
            stream.write(b"damaged = True\n")
    again = environments.create(serve, wheels=tmp_path / "other", again=True).id
    assert b"damaged" not in next((place.parent / again).rglob("numpy/core.py")).read_bytes()
    environments.use("serve", again)
    environments.rollback("serve")
    environments.gc("serve")
    assert tree(first.parent) == before


@pytest.mark.nightly
def test_the_real_server_and_the_real_trainer_live_side_by_side(tmp_path: Path):
    """15 GB of files: an SGLang server made, used and removed beside training's environment."""
    host = Host("here", parse_chain("local"), root=str(tmp_path / "root"))
    with on_host(host) as environments:
        envs = REPOSITORY / "envs"
        environments.use("train-cu130", environments.create(envs / "train-cu130").id)
        (train,) = environments.listed()
        before = environments.read(train["path"]).snapshot.files
        server = environments.create(envs / "serve-sglang").id
        environments.use("serve-sglang", server)
        (place,) = [row["path"] for row in environments.listed("serve-sglang")]
        program = "import importlib.metadata as m; print(m.version('sglang'), m.version('torch'))"
        done = subprocess.run([f"{place}/bin/python", "-B", "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.split()[1].startswith("2.14")
        assert not [each for each in environments.verify(envs / "serve-sglang", place)[0] if each.severity == "block"]
        environments.use("serve-sglang", environments.create(envs / "serve-sglang", again=True).id)
        environments.rollback("serve-sglang")
        environments.create(envs / "serve-sglang", again=True)
        assert [row["removed"] for row in environments.gc("serve-sglang")] == [False, True, False]
        assert environments.read(train["path"]).snapshot.files == before
        assert not [
            each for each in environments.verify(envs / "train-cu130", train["path"])[0] if each.severity == "block"
        ]
