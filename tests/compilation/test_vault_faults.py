"""Whatever happens to those who use a vault, and whoever else is at work: nothing is lost, nothing wrong is used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dflash.compilation import far
from dflash.compilation.cachekey import key_file, read_key, write_key
from dflash.compilation.holders import holders
from dflash.compilation.parcels import check
from dflash.compilation.vault import Vault, VaultError
from dflash.errors import BusyError, StorageError, UsageError
from tests.compilation.caches import KEY, fill, tree
from tests.compilation.killing import REPOSITORY, run, start
from tests.mounts import small_file_system, unwritable

PARTS = 10


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return tmp_path / "secret" / "key"


@pytest.fixture
def small_cache(tmp_path: Path) -> Path:
    """Few files, so that few lines are run for them; with its key beside it."""
    cache = tmp_path / "small" / "cache"
    for number in range(3):
        path = cache / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
    write_key(cache, KEY, 4)
    return cache


def drafts(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".") and path.name != ".lock"]


@contextmanager
def job(cache: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has `cache` as its compile cache."""
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)}) as process:
        try:
            yield process
        finally:
            process.kill()


# --- killed at a step


def test_a_saver_killed_at_any_step_leaves_nothing_that_is_used_and_the_next_one_succeeds(
    tmp_path: Path, small_cache: Path, key: Path
):
    run(0, tmp_path / "first", key, "save", str(small_cache))  # makes the key
    lines = int(run(0, tmp_path / "counted", key, "save", str(small_cache)).stdout)
    for part in range(1, PARTS):
        folder = tmp_path / f"vault{part}"
        assert run(lines * part // PARTS, folder, key, "save", str(small_cache)).returncode == -9
        vault = Vault(folder, key)
        for each in vault.listed():  # killed after the rename: it is whole
            check(folder / "snapshots" / each.id / "files.zst", each.parcels)
        found = vault.save(small_cache, KEY, {}, 4)
        assert [each.id for each in vault.listed()] == [found.id]
        assert drafts(folder) == []
        vault.restore(found.id, tmp_path / f"back{part}")
        assert tree(tmp_path / f"back{part}") == tree(small_cache)


def test_a_restore_killed_at_any_step_leaves_what_was_there_or_all_that_it_brings(
    tmp_path: Path, vault: Vault, small_cache: Path, key: Path
):
    saved = vault.save(small_cache, KEY, {}, 4)
    wanted, before = tree(small_cache), {"mine": (0o100644, b"not saved")}

    def place(name: str) -> Path:
        folder = tmp_path / name / "cache"
        (folder / "locks").mkdir(parents=True)  # so that it is a compile cache
        (folder / "mine").write_bytes(b"not saved")
        (folder / "mine").chmod(0o644)
        return folder

    lines = int(run(0, vault.folder, key, "restore", saved.id, str(place("counted"))).stdout)
    for part in range(1, PARTS):
        folder = place(f"place{part}")
        assert run(lines * part // PARTS, vault.folder, key, "restore", saved.id, str(folder)).returncode == -9
        aside = folder.with_name("cache.aside-1")
        kept = tree(folder) if folder.exists() else tree(aside)
        assert kept in (before, wanted)
        assert before in (kept, tree(aside) if aside.exists() else before)
        vault.restore(saved.id, folder)
        assert tree(folder) == wanted
        assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []


def test_a_removal_killed_at_any_step_leaves_it_whole_or_gone(
    tmp_path: Path, vault: Vault, small_cache: Path, key: Path
):
    saved = vault.save(small_cache, KEY, {}, 4)
    lines = int(run(0, vault.folder, key, "remove", saved.id).stdout)
    for part in range(1, PARTS):
        saved = vault.save(small_cache, KEY, {}, 4)
        assert run(lines * part // PARTS, vault.folder, key, "remove", saved.id).returncode == -9
        assert [each.state for each in vault.verify()] == ["ok"] * len(vault.listed())
    vault.save(small_cache, KEY, {}, 4)
    assert drafts(vault.folder) == []


# --- at once


def test_savers_at_once_keep_all_that_they_save(tmp_path: Path, key: Path):
    caches = [fill(tmp_path / f"cache{number}", dense=True) for number in (0, 1)]
    for number, cache in enumerate(caches):
        write_key(cache, {**KEY, "graphs": str(number)}, 4)
    savers = [start(tmp_path / "vault", key, "save", str(cache)) for cache in [*caches, *caches]]
    assert [(each.communicate()[1], each.returncode) for each in savers] == [("", 0)] * 4
    vault = Vault(tmp_path / "vault", key)
    assert [each.state for each in vault.verify()] == ["ok", "ok"]
    assert drafts(vault.folder) == []
    for number, cache in enumerate(caches):
        found = vault.find({**KEY, "graphs": str(number)})
        assert found is not None
        vault.restore(found.id, tmp_path / "back" / str(number))
        assert tree(tmp_path / "back" / str(number)) == tree(cache)


def test_restores_to_one_folder_at_once_end_with_all_of_it(tmp_path: Path, vault: Vault, cache: Path, key: Path):
    saved, place = vault.save(cache, KEY, {}, 4), tmp_path / "place" / "cache"
    restores = [start(vault.folder, key, "restore", saved.id, str(place)) for _ in range(3)]
    assert [(each.communicate()[1], each.returncode) for each in restores] == [("", 0)] * 3
    assert tree(place) == tree(cache)
    assert [path.name for path in place.parent.iterdir() if path.name.startswith(".")] == []


def test_two_who_find_a_snapshot_damaged_both_say_so_and_it_is_set_aside_once(
    tmp_path: Path, vault: Vault, cache: Path, key: Path
):
    saved = vault.save(cache, KEY, {}, 4)
    archive = vault.place(saved.id) / "files.zst"
    archive.write_bytes(archive.read_bytes()[:-1] + b"\0")
    says = rf"snapshot {saved.id} is damaged \(.*\)"

    def find_it_while_another_process_does() -> None:
        with vault.reading(saved.id) as (snapshot, opened):
            first = run(0, vault.folder, key, "restore", saved.id, str(tmp_path / "one"))
            assert re.search(f"{says} and set aside", first.stderr)
            check(opened, snapshot.parcels)

    with pytest.raises(VaultError, match=f"{says}, and another process took it away"):
        find_it_while_another_process_does()
    assert [path.name for path in (vault.folder / "damaged").iterdir()] == [f"{saved.id}.aside-1"]
    assert not (tmp_path / "one").exists()
    again = vault.save(cache, KEY, {}, 4)
    assert (again.id, vault.whole(again.id) is not None) == (saved.id, True)


def test_what_is_saved_again_while_the_kept_one_is_damaged_is_kept_anew(vault: Vault, cache: Path):
    saved = vault.save(cache, KEY, {}, 4)
    archive = vault.place(saved.id) / "files.zst"
    archive.write_bytes(archive.read_bytes()[:-1] + b"\0")
    assert vault.save(cache, KEY, {}, 4).id == saved.id
    assert [each.state for each in vault.verify()] == ["ok"]
    assert len(list((vault.folder / "damaged").iterdir())) == 1


def test_what_is_being_read_is_not_removed(vault: Vault, cache: Path, key: Path):
    saved = vault.save(cache, KEY, {}, 4)
    with vault.reading(saved.id):
        with pytest.raises(BusyError, match=f"somebody reads snapshot {saved.id}"):
            vault.remove(saved.id)
        assert "reads snapshot" in run(0, vault.folder, key, "remove", saved.id).stderr
    vault.remove(saved.id)


def test_a_pin_that_is_made_while_its_snapshot_is_removed_fails(
    vault: Vault, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    saved, other = vault.save(cache, KEY, {}, 4), Vault(vault.folder, vault._signer.key_file)
    failures: list[BaseException] = []

    def pin() -> None:
        try:
            other.pin("run", saved.id)
        except VaultError as failure:
            failures.append(failure)

    pinning, pins = threading.Thread(target=pin), vault.pins

    def looked() -> dict[str, list[str]]:
        found = pins()
        pinning.start()
        time.sleep(0.2)
        return found

    monkeypatch.setattr(vault, "pins", looked)
    vault.remove(saved.id)
    pinning.join()
    assert [f"snapshot {saved.id} was taken away just now" in str(each) for each in failures] == [True]
    assert other.pins() == {}


# --- the folder of a running job


def test_a_cache_deleted_under_a_running_job_comes_back_when_that_has_ended(vault: Vault, cache: Path):
    """Not before: the job makes its files anew there as it needs them, and must not find others in their place."""
    saved, before = vault.save(cache, KEY, {}, 4), tree(cache)
    with job(cache) as process:
        shutil.rmtree(cache)
        with pytest.raises(BusyError, match=f"process {process.pid} uses this compile cache"):
            vault.restore(saved.id, cache)
        assert not cache.exists()
    vault.restore(saved.id, cache)
    assert tree(cache) == before


def test_a_cache_is_in_use_by_a_relative_name_by_a_link_and_by_an_open_folder(tmp_path: Path, cache: Path):
    (tmp_path / "link").symlink_to(cache)
    code = "import sys, time; from pathlib import Path; from dflash.compilation.holders import hold"
    ways = [
        (["sleep", "60"], {"TORCHINDUCTOR_CACHE_DIR": "live/cache"}),
        (["sleep", "60"], {"TRITON_CACHE_DIR": str(tmp_path / "link" / "triton")}),
        (
            [sys.executable, "-c", f"{code}; hold(Path(sys.argv[1])); time.sleep(60)", str(cache)],
            {"PYTHONPATH": str(REPOSITORY)},
        ),
    ]
    for words, variables in ways:
        with subprocess.Popen(words, cwd=tmp_path, env={**os.environ, **variables}) as process:
            try:
                until = time.monotonic() + 10
                while holders(cache) != [process.pid]:
                    assert time.monotonic() < until
                    time.sleep(0.02)
            finally:
                process.kill()
    assert holders(cache) == []


# --- saved by hand


def test_a_cache_is_saved_by_the_key_that_pre_warm_wrote_beside_it(vault: Vault, cache: Path):
    write_key(cache, KEY, 7)
    made = far.save(vault, str(cache))
    found = vault.find(KEY)
    assert found is not None
    assert (made["id"], found.graphs, found.recorded["path"]) == (found.id, 7, str(cache))


def test_a_cache_whose_key_is_unknown_is_not_saved(vault: Vault, cache: Path):
    with pytest.raises(UsageError, match=r"nobody knows what this compile cache is valid for.*; run \./inv prewarm"):
        far.save(vault, str(cache))
    for text in ("", "[]", '{"key": {}, "graphs": 1}', '{"key": 1}', '{"key": {"torch": "2"}, "graphs": "many"}'):
        key_file(cache).write_text(text)
        with pytest.raises(UsageError, match=r"cache\.key\.json: .*run \./inv prewarm"):
            read_key(cache)
    with pytest.raises(UsageError, match="there is no such folder"):
        far.save(vault, str(cache / "absent"))
    assert vault.listed() == []


def test_a_cache_in_use_is_not_saved_by_hand(vault: Vault, cache: Path):
    write_key(cache, KEY, 4)
    with job(cache) as process, pytest.raises(BusyError, match=f"process {process.pid} uses .* may be half-way"):
        far.save(vault, str(cache))
    far.save(vault, str(cache))


# --- disks


def test_a_full_disk_where_it_is_restored_leaves_what_was_there(vault: Vault, tmp_path: Path, cache: Path):
    shutil.rmtree(cache)
    saved = vault.save(fill(cache, dense=True), KEY, {}, 4)
    with small_file_system(tmp_path / "disk", "100k") as disk:
        place = disk / "cache"
        place.mkdir()
        (place / "mine").write_text("not saved")
        with pytest.raises(StorageError, match="No space left on device"):
            vault.restore(saved.id, place)
        assert [path.name for path in disk.iterdir()] == ["cache"]
        assert (place / "mine").read_text() == "not saved"


def test_a_vault_that_can_not_be_written_is_read_all_the_same(vault: Vault, cache: Path, tmp_path: Path):
    saved = vault.save(cache, KEY, {}, 4)
    (cache / "more").write_bytes(b"more")
    damaged = vault.save(cache, KEY, {}, 5)
    vault.pin("run", damaged.id)
    archive = vault.place(damaged.id) / "files.zst"
    archive.write_bytes(archive.read_bytes()[:-1] + b"\0")
    with unwritable(vault.folder):
        assert [each.id for each in vault.listed()] == [saved.id, damaged.id]
        assert vault.pins() == {damaged.id: ["run"]}
        vault.restore(saved.id, tmp_path / "back")
        assert len(tree(tmp_path / "back")) == saved.files
        with pytest.raises(VaultError, match=r"is damaged .*can not be set aside \(Read-only|Permission"):
            vault.restore(damaged.id, tmp_path / "other")
        assert not (tmp_path / "other").exists()
        assert sorted(each.state for each in vault.verify()) == ["damaged", "ok"]
        for act in (
            lambda: vault.save(cache, {**KEY, "more": "1"}, {}, 4),
            lambda: vault.pin("run", saved.id),
            lambda: vault.remove(saved.id),
        ):
            with pytest.raises(StorageError):
                act()
    assert [each.id for each in vault.listed()] == [saved.id, damaged.id]
