"""Where the work would be kept, asked of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dflash.provision.fact import Output
from dflash.provision.facts.resources import Disk, disk_of

SHARED = Path("/dev/shm")


def found_at(path: str, home: Path = Path("/")) -> Disk | None:
    fact = disk_of(path)
    done = subprocess.run(fact.argv, capture_output=True, text=True, env={"HOME": str(home), "PATH": "/usr/bin:/bin"})
    return fact.parse(Output(done.returncode, done.stdout, done.stderr))


@pytest.fixture
def link(tmp_path: Path) -> Path:
    link = tmp_path / "to memory"
    link.symlink_to(SHARED)
    return link


def test_what_is_not_there_yet_is_on_the_disk_of_what_is_above_it() -> None:
    found = found_at("/dev/shm/dflash-not-there/envs")
    assert found is not None
    assert found.mount == str(SHARED)
    assert 0 < found.free <= found.size


def test_a_link_is_followed_to_the_disk_behind_it(link: Path) -> None:
    found = found_at(f"{link}/not there")
    assert found is not None
    assert found.mount == str(SHARED)


def test_the_home_folder_is_that_of_the_machine(link: Path) -> None:
    for path in ("~", "~/.dflash"):
        found = found_at(path, link)
        assert found is not None
        assert found.mount == str(SHARED)


def test_a_word_that_looks_like_an_option_is_a_path() -> None:
    assert found_at("--help") is not None
