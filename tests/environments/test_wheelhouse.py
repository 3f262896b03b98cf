"""A wheelhouse holds exactly the files of a lock, and is proved by making the environment from it with no network."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.environments.wheelhouse import fill, platforms, prove
from dflash.errors import EnvironmentMismatch
from tests.wheels import make_wheel

VERSION = "3.11"


@pytest.fixture(autouse=True)
def index(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only place where pip finds files: the folder that the declaration's wheels are in."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def test_every_file_of_the_lock_is_fetched_and_they_suffice(folder: Path, wheels: Path, tmp_path: Path):
    made = fill(folder, tmp_path / "house")
    assert made.proved is True
    assert sorted(path.name for path in (tmp_path / "house").iterdir()) == sorted(
        path.name for path in wheels.iterdir()
    )
    assert made.files == 5


def test_what_is_there_stays_and_what_is_missing_comes(folder: Path, wheels: Path, tmp_path: Path):
    house = tmp_path / "house"
    fill(folder, house)
    kept = next(house.glob("numpy-*"))
    before = kept.stat().st_ino
    next(house.glob("triton-*")).unlink()
    assert fill(folder, house).files == 5
    assert kept.stat().st_ino == before


def test_a_file_that_the_lock_does_not_know_is_refused_and_stays(folder: Path, tmp_path: Path):
    house = tmp_path / "house"
    stray = make_wheel(house, "einops", "0.8.0")
    with pytest.raises(EnvironmentMismatch, match=r"the lock has no file with the hash of einops-0\.8\.0"):
        fill(folder, house)
    assert stray.exists()


def test_a_file_that_no_index_has_is_one_line(folder: Path, wheels: Path, tmp_path: Path):
    next(wheels.glob("triton-*")).unlink()
    with pytest.raises(EnvironmentMismatch, match=r"pip could not fetch it: .*triton") as raised:
        fill(folder, tmp_path / "house")
    assert "\n" not in str(raised.value)


def test_a_wheelhouse_that_does_not_suffice_is_found_out(folder: Path, tmp_path: Path):
    house = tmp_path / "house"
    fill(folder, house)
    next(house.glob("triton-*")).unlink()
    with pytest.raises(EnvironmentMismatch, match=r"it does not suffice: .*triton"):
        prove(folder, house, VERSION)


def test_wheels_for_an_older_glibc_fit_a_newer_one():
    tags = platforms("x86_64-manylinux_2_28")
    assert tags[0].startswith("manylinux_2_28_")
    assert "manylinux_2_17_" in " ".join(tags)
    assert not any("2_34" in tag for tag in tags)
