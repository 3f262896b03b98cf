"""What lies in a vault, or where a cache is to go, and is none of ours: named, and left where it is."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from dflash import cli_cache
from dflash.compilation import drafts, far
from dflash.compilation.cachekey import key_file, write_key
from dflash.compilation.parcels import DamagedParcel
from dflash.compilation.vault import Vault, VaultError
from dflash.errors import UsageError
from tests.compilation.caches import KEY


def test_what_is_no_snapshot_is_named_by_verify_and_in_nobodys_way(vault: Vault, cache: Path):
    saved = vault.save(cache, KEY, {}, 4)
    (vault.folder / "snapshots" / "x.orig").touch()
    (vault.folder / "snapshots" / "a copy").mkdir()
    assert [each.id for each in vault.listed()] == [saved.id]
    assert vault.find(KEY) is not None
    assert vault.save(cache, KEY, {}, 4).id == saved.id
    assert {each.id: (each.state, each.wrong) for each in vault.verify()} == {
        saved.id: ("ok", ""),
        "x.orig": ("unusable", "is no snapshot: move it away"),
        "a copy": ("unusable", "is no snapshot: move it away"),
    }
    assert (vault.folder / "snapshots" / "x.orig").exists()


@pytest.mark.parametrize("again", [False, True], ids=["gone", "saved again"])
def test_what_another_process_took_away_is_not_said_to_be_set_aside(vault: Vault, cache: Path, again: bool):
    saved = vault.save(cache, KEY, {}, 4)

    def find_damage() -> None:
        with vault.reading(saved.id):
            vault.place(saved.id).rename(vault.folder / "elsewhere")
            if again:
                vault.save(cache, KEY, {}, 4)
            raise DamagedParcel("bytes are damaged")

    with pytest.raises(VaultError, match=r"is damaged .*, and another process took it away") as failure:
        find_damage()
    assert failure.value.where == str(vault.folder)
    assert [each.id for each in vault.listed()] == ([saved.id] if again else [])


def test_a_transfer_that_is_given_up_meanwhile_is_in_no_savers_way(
    vault: Vault, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    left = vault.folder / ".arriving-0-0123456789abcdef"
    left.mkdir(parents=True)
    touched = drafts._touched

    def slowly(folder: Path) -> float:
        shutil.rmtree(left)
        return touched(folder)

    monkeypatch.setattr(drafts, "_touched", slowly)
    vault.save(cache, KEY, {}, 4)
    assert not left.exists()


def test_a_transfer_that_nobody_goes_on_with_is_collected_after_a_week(vault: Vault, cache: Path):
    vault.folder.mkdir()
    for name, days in (("old", 8), ("new", 6)):
        folder = vault.folder / f".arriving-{name}-0123456789abcdef"
        folder.mkdir()
        (folder / "part").touch()
        for path in (folder / "part", folder):
            os.utime(path, (time.time() - days * 86400,) * 2)
    vault.save(cache, KEY, {}, 4)
    assert [path.name for path in vault.folder.glob(".*-*")] == [".arriving-new-0123456789abcdef"]


def test_an_archive_that_is_gone_is_damage(vault: Vault, cache: Path):
    saved = vault.save(cache, KEY, {}, 4)
    (vault.place(saved.id) / "files.zst").unlink()
    assert vault.find(KEY) is None
    (found,) = vault.verify()
    assert (found.state, "files.zst is gone" in found.wrong) == ("damaged", True)


# --- by hand


def test_a_folder_that_is_no_compile_cache_is_not_moved_away(vault: Vault, cache: Path, tmp_path: Path):
    saved = vault.save(cache, KEY, {}, 4)
    project = tmp_path / "project"
    project.mkdir()
    assert far.restore(vault, saved.id, str(project))["aside"] == ""
    shutil.rmtree(project)
    project.mkdir()
    (project / "notes").write_text("mine")
    for place in (project, project / "notes"):
        with pytest.raises(UsageError, match=f"{place}: what is there is no compile cache.*; name another folder"):
            far.restore(vault, saved.id, str(place))
    assert [path.name for path in tmp_path.glob("project*")] == ["project"]
    key_file(project).touch()
    former = Path(far.restore(vault, saved.id, str(project))["aside"])
    assert (former / "notes").read_text() == "mine"
    assert far.restore(vault, saved.id, str(project))["aside"] == f"{project}.aside-2"


def test_a_folder_in_the_home_is_saved_by_its_short_name(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_key(cache, KEY, 4)
    cli_cache.save(folder="~/live/cache", where=("", "", str(tmp_path / "root")), as_json=False)
    assert "4 graphs, 43 files" in capsys.readouterr().out


def test_this_machine_is_asked_without_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dflash.hosts.reach.reach", lambda chain: pytest.fail("a connection"))
    for host in ("", "local"):
        assert cli_cache.ask((host, "", str(tmp_path)), "list") == []
    assert list(tmp_path.iterdir()) == []
