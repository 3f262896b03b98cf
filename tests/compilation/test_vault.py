"""The vault gives back exactly what was saved, to the key it was saved under, and nothing else, whatever happens."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from dflash.compilation.parcels import pack, unpack, wanted
from dflash.compilation.vault import Vault, VaultError, differing
from dflash.errors import BusyError, StorageError, UsageError
from tests.compilation.caches import KEY, fill, tree
from tests.mounts import small_file_system

REPOSITORY = Path(__file__).parents[2]


def test_what_is_restored_is_what_was_saved_byte_for_byte(vault: Vault, cache: Path, tmp_path: Path):
    saved = vault.save(cache, KEY, {"host": "here"}, graphs=4)
    assert saved.files == 43
    back = tmp_path / "elsewhere" / "cache"
    assert vault.restore(saved.id, back)[1] is None
    assert tree(back) == tree(cache)
    assert not list(back.rglob("*.tmp"))
    assert not (back / "locks").exists()
    assert [path.name for path in (back / "triton").iterdir()] == ["7QLC"], "kernels name their files by whole paths"


def test_saving_the_same_twice_keeps_it_once(vault: Vault, cache: Path):
    first = vault.save(cache, KEY, {}, 4)
    assert vault.save(cache, KEY, {}, 4).id == first.id
    assert len(vault.listed()) == 1


@pytest.mark.parametrize("ingredient", KEY)
def test_a_key_that_differs_in_one_ingredient_is_a_miss_that_names_it(vault: Vault, cache: Path, ingredient: str):
    vault.save(cache, KEY, {}, 4)
    other = {**KEY, ingredient: "another"}
    assert vault.find(other) is None
    assert vault.why_not(other) == [f"{ingredient}: {KEY[ingredient]} -> another"]
    assert vault.find(KEY) is not None


def test_an_ingredient_that_is_new_or_gone_is_a_miss_too(vault: Vault, cache: Path):
    vault.save(cache, KEY, {}, 4)
    assert vault.find({**KEY, "gpu": "H200"}) is None
    assert vault.find({name: value for name, value in KEY.items() if name != "torch"}) is None
    assert differing({"a": "1"}, {"b": "2"}) == ["a: 1 -> none", "b: none -> 2"]


def test_of_several_the_one_with_most_graphs_is_found_whatever_the_clock_says(
    vault: Vault, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    vault.save(cache, KEY, {}, 4)
    (cache / "more").write_bytes(b"more")
    most = vault.save(cache, KEY, {}, 6)
    (cache / "yet more").write_bytes(b"more")
    monkeypatch.setattr(time, "time", lambda: 1.0)  # a clock that was set back
    latest = vault.save(cache, KEY, {}, 6)
    found = vault.find(KEY)
    assert found is not None
    assert found.id == latest.id != most.id


def test_an_empty_cache_is_not_kept(vault: Vault, tmp_path: Path):
    (tmp_path / "empty" / "locks").mkdir(parents=True)
    with pytest.raises(VaultError, match="there is nothing in the cache to keep"):
        vault.save(tmp_path / "empty", KEY, {}, 0)
    assert vault.listed() == []


# --- damage


def archive_of(vault: Vault, identity: str) -> Path:
    return vault.folder / "snapshots" / identity / "files.zst"


@pytest.mark.parametrize("place", [0, 0.3, 0.6, 0.999])
def test_one_flipped_bit_is_found_and_the_snapshot_set_aside_and_never_used(
    vault: Vault, cache: Path, tmp_path: Path, place: float
):
    shutil.rmtree(cache)
    fill(cache, dense=True)  # so that most of the archive is content
    saved = vault.save(cache, KEY, {}, 4)
    archive = archive_of(vault, saved.id)
    content = bytearray(archive.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    archive.write_bytes(content)
    before = tree(cache)
    with pytest.raises(VaultError, match=f"snapshot {saved.id} is damaged .* and set aside"):
        vault.restore(saved.id, cache)
    assert tree(cache) == before, "what was there stays"
    assert vault.find(KEY) is None
    assert len(list((vault.folder / "damaged").iterdir())) == 1
    assert not list(cache.parent.glob(".*restoring"))


def test_a_shortened_archive_is_found_by_verify(vault: Vault, cache: Path):
    whole = vault.save(cache, KEY, {}, 4)
    (cache / "more").write_bytes(b"more")
    short = vault.save(cache, KEY, {}, 4)
    archive = archive_of(vault, short.id)
    archive.write_bytes(archive.read_bytes()[:-10])
    found = {each.id: each for each in vault.verify()}
    assert found[whole.id].state == "ok"
    assert (found[short.id].state, "set aside" in found[short.id].wrong) == ("damaged", True)
    assert [each.id for each in vault.listed()] == [whole.id]


def test_a_manifest_that_somebody_changed_is_not_used(vault: Vault, cache: Path, tmp_path: Path):
    saved = vault.save(cache, KEY, {}, 4)
    manifest = vault.folder / "snapshots" / saved.id / "manifest.json"
    manifest.write_text(manifest.read_text().replace("g++ 12", "g++ 99"))
    with pytest.raises(VaultError, match=r"its manifest was changed after it was signed.* and set aside"):
        vault.restore(saved.id, tmp_path / "cache")
    assert vault.listed() == []
    assert vault.save(cache, KEY, {}, 4).id == saved.id, "it does not stand in the way"


def test_a_snapshot_signed_with_another_key_is_not_used(vault: Vault, cache: Path, tmp_path: Path):
    saved = vault.save(cache, KEY, {}, 4)
    stranger = Vault(vault.folder, tmp_path / "other" / "key")
    with pytest.raises(VaultError, match="is not signed with your key"):
        stranger.load(saved.id)
    assert stranger.find(KEY) is None


def test_a_snapshot_that_others_can_write_is_not_used(vault: Vault, cache: Path):
    saved = vault.save(cache, KEY, {}, 4)
    archive_of(vault, saved.id).chmod(0o666)
    with pytest.raises(VaultError, match="others than its owner can write it"):
        vault.load(saved.id)


def test_a_key_that_others_can_read_is_refused(vault: Vault, cache: Path, tmp_path: Path):
    vault.save(cache, KEY, {}, 4)
    (tmp_path / "secret" / "key").chmod(0o644)
    with pytest.raises(UsageError, match="readable by you alone"):
        vault.save(cache, KEY, {}, 4)


def test_a_snapshot_that_is_renamed_is_not_what_its_name_says(vault: Vault, cache: Path):
    saved = vault.save(cache, KEY, {}, 4)
    (vault.folder / "snapshots" / saved.id).rename(vault.folder / "snapshots" / ("0" * 16))
    with pytest.raises(VaultError, match="is not what its name says"):
        vault.load("0" * 16)


# --- others at work


def test_a_cache_in_use_is_not_touched(vault: Vault, cache: Path):
    saved = vault.save(cache, KEY, {}, 4)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    before = tree(cache)
    with subprocess.Popen(["sleep", "60"], env=environment) as user:
        try:
            with pytest.raises(BusyError, match=f"process {user.pid} uses this compile cache"):
                vault.restore(saved.id, cache)
        finally:
            user.kill()
    assert tree(cache) == before


def test_an_open_file_is_a_use_too(vault: Vault, cache: Path):
    saved = vault.save(cache, KEY, {}, 4)
    with (cache / "empty").open("rb") as file, subprocess.Popen(["sleep", "60"], stdin=file) as user:
        try:
            with pytest.raises(BusyError, match=f"process {user.pid}"):
                vault.restore(saved.id, cache)
        finally:
            user.kill()


def test_what_was_in_the_way_is_moved_aside_not_deleted(vault: Vault, cache: Path):
    saved = vault.save(cache, KEY, {}, 4)
    (cache / "mine").write_text("not saved")
    assert vault.restore(saved.id, cache)[1] == cache.with_name("cache.aside-1")
    assert not (cache / "mine").exists()
    assert (cache.parent / "cache.aside-1" / "mine").read_text() == "not saved"


def test_many_savers_at_once_leave_one_whole_snapshot(vault: Vault, cache: Path):
    threads = [threading.Thread(target=lambda: vault.save(cache, KEY, {}, 4)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(vault.listed()) == 1
    assert list(vault.folder.glob(".saving-*")) == []
    assert [each.state for each in vault.verify()] == ["ok"]


def test_a_full_disk_is_one_line_and_loses_nothing(cache: Path, tmp_path: Path):
    with small_file_system(tmp_path / "small", "100k") as small:
        shutil.rmtree(cache)
        fill(cache, dense=True)
        vault = Vault(small / "vault", tmp_path / "secret" / "key")
        with pytest.raises(StorageError, match="No space left on device"):
            vault.save(cache, KEY, {}, 4)
        assert vault.listed() == []
        assert list(vault.folder.glob(".saving-*")) == []


# --- keep and remove


def test_a_pinned_snapshot_is_not_removed(vault: Vault, cache: Path):
    saved = vault.save(cache, KEY, {}, 4)
    vault.pin("20260101T000000-run", saved.id)
    with pytest.raises(BusyError, match=f"snapshot {saved.id} is pinned by 20260101T000000-run"):
        vault.remove(saved.id)
    vault.release("20260101T000000-run", saved.id)
    vault.remove(saved.id)
    assert vault.listed() == []
    assert list(vault.folder.glob(".removed-*")) == []


def test_a_run_lets_go_of_nothing_but_the_snapshot_that_it_keeps(vault: Vault, cache: Path):
    saved = vault.save(cache, KEY, {}, 4)
    vault.pin("run", saved.id)
    with pytest.raises(UsageError, match=f"run does not keep snapshot {'0' * 16}, but {saved.id}; name the one"):
        vault.release("run", "0" * 16)
    assert vault.pins() == {saved.id: ["run"]}
    with pytest.raises(UsageError, match=f"other does not keep snapshot {saved.id}, but none$"):
        vault.release("other", saved.id)


def test_only_a_name_that_is_there_is_removed(vault: Vault, cache: Path):
    vault.save(cache, KEY, {}, 4)
    for name in ("nothing", "", "../vault", "."):
        with pytest.raises((VaultError, UsageError)):
            vault.remove(name)
    assert len(vault.listed()) == 1


def test_many_small_parcels_pack_and_unpack(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dflash.compilation.parcels.PARCEL", 1000)
    parcels = pack(cache, wanted(cache), tmp_path / "archive")
    assert len(parcels) > 20
    unpack(tmp_path / "archive", parcels, tmp_path / "back")
    assert tree(tmp_path / "back") == tree(cache)
