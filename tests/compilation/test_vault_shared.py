"""Who may use a snapshot: signatures, owners, and vaults that several share. What is not ours is left alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dflash.compilation.cachekey import write_key
from dflash.compilation.parcels import File, Parcel
from dflash.compilation.signing import Signer
from dflash.compilation.snapshots import ARCHIVE, DamagedSnapshot, Snapshot, identity_of, parse_manifest
from dflash.compilation.vault import Vault, VaultError
from dflash.errors import UsageError
from tests.compilation.caches import KEY, tree
from tests.compilation.killing import REPOSITORY


def test_others_snapshots_in_a_shared_vault_are_named_never_used_and_left_alone(
    vault: Vault, cache: Path, tmp_path: Path
):
    saved = vault.save(cache, KEY, {}, 4)
    other = Vault(vault.folder, tmp_path / "other" / "key")
    (cache / "more").write_bytes(b"more")
    mine = other.save(cache, KEY, {}, 5)
    assert {each.id: each.state for each in other.verify()} == {saved.id: "foreign", mine.id: "ok"}
    assert "is not signed with your key" in next(each.wrong for each in other.verify() if each.id == saved.id)
    assert [each.id for each in other.listed()] == [mine.id]
    (cache / "more").unlink()
    for act in (
        lambda: other.restore(saved.id, tmp_path / "back"),
        lambda: other.remove(saved.id),
        lambda: other.pin("run", saved.id),
        lambda: other.save(cache, KEY, {}, 4),
    ):
        with pytest.raises(VaultError, match="is not signed with your key"):
            act()
    assert not (tmp_path / "back").exists()
    assert [each.id for each in vault.listed()] == [saved.id]


def test_to_look_makes_no_key(vault: Vault, cache: Path, tmp_path: Path):
    vault.save(cache, KEY, {}, 4)
    assert [each.state for each in Vault(vault.folder, tmp_path / "none" / "key").verify()] == ["foreign"]
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_snapshot_is_used_only_where_the_key_is_one_that_they_share(
    vault: Vault, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    saved = vault.save(cache, KEY, {}, 4)
    for path in (vault.place(saved.id), *vault.place(saved.id).iterdir()):
        os.chown(path, 12345, 12345)
    with pytest.raises(
        VaultError, match="user 12345 owns it, and your key is not one that you share by DFLASH_VAULT_KEY"
    ):
        vault.restore(saved.id, tmp_path / "back")
    assert [each.state for each in vault.verify()] == ["unusable"]
    monkeypatch.setenv("DFLASH_VAULT_KEY", str(tmp_path / "secret" / "key"))
    shared = Vault(vault.folder)
    shared.restore(saved.id, tmp_path / "back")
    assert tree(tmp_path / "back") == tree(cache)
    (vault.place(saved.id) / ARCHIVE).chmod(0o664)
    with pytest.raises(VaultError, match="others than its owner can write it"):
        shared.restore(saved.id, tmp_path / "again")


TEAM = """
import os, sys
from pathlib import Path
from dflash.compilation import far
from dflash.compilation.vault import Vault

folder, key, number, *words = sys.argv[1:]
os.environ["DFLASH_VAULT_KEY"] = key
vault = Vault(Path(folder))
os.setgroups([])
os.setresgid(4242, 4242, 4242)
os.setresuid(int(number), int(number), int(number))
os.umask(0o002)
print(far.answer(vault, *words))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_two_users_share_a_vault_by_a_group_and_a_key():
    """Each has a copy of the key. What one keeps both restore, and only its owner removes it."""
    with tempfile.TemporaryDirectory(prefix="dflash-team-") as name:
        top = Path(name)
        top.chmod(0o755)
        (top / "vault").mkdir()
        os.chown(top / "vault", 0, 4242)
        (top / "vault").chmod(0o2775)
        for number in (4301, 4302):
            cache = top / str(number) / "cache"
            cache.mkdir(parents=True)
            (cache / "entry").write_text(f"of {number}")
            write_key(cache, {**KEY, "graphs": str(number)}, 4)
            Signer(top / "key").sign(b"")
            shutil.copy(top / "key", cache.parent / "key")
            for path in (cache.parent, *cache.parent.rglob("*")):
                os.chown(path, number, 4242)

        def asked(number: int, *words: str) -> subprocess.CompletedProcess[str]:
            place = top / str(number)
            command = [sys.executable, "-B", "-c", TEAM, str(top / "vault"), str(place / "key"), str(number), *words]
            return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)

        for number in (4301, 4302):
            done = asked(number, "save", str(top / str(number) / "cache"))
            assert done.returncode == 0, done.stderr
        for number, other in ((4301, 4302), (4302, 4301)):
            assert asked(number, "verify").stdout.count("'ok'") == 2
            found = Vault(top / "vault", top / "key")
            (theirs,) = (place.name for place in (top / "vault/snapshots").iterdir() if place.stat().st_uid == other)
            assert asked(number, "restore", theirs, str(top / str(number) / "back")).returncode == 0
            assert (top / str(number) / "back" / "entry").read_text() == f"of {other}"
            assert "StorageError" in asked(number, "remove", theirs).stderr
            assert found.place(theirs).exists()


def test_whatever_the_umask_is_others_can_not_write_what_is_saved(vault: Vault, cache: Path):
    before = os.umask(0)
    try:
        saved = vault.save(cache, KEY, {}, 4)
    finally:
        os.umask(before)
    assert [each.id for each in vault.listed()] == [saved.id]


def test_the_key_is_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (Signer().key_file, Signer().shared) == (tmp_path / ".dflash" / "vault.key", False)
    monkeypatch.setenv("DFLASH_VAULT_KEY", "~/team.key")
    with pytest.raises(
        UsageError, match=r"team\.key: the key that DFLASH_VAULT_KEY names is not there; copy"
    ) as failure:
        Vault(tmp_path / "vault")
    assert failure.value.cure
    subprocess.run(["sh", "-c", failure.value.cure.partition("make it: ")[2]], check=True)
    assert Signer().judge(b"x", Signer().sign(b"x")) == "right"
    assert (Signer().key_file, Signer().shared) == (tmp_path / "team.key", True)
    assert Signer(tmp_path / "given").shared is False


@pytest.mark.parametrize("name", ["manifest.json", "signature"])
@pytest.mark.parametrize("place", [0, 0.2, 0.5, 0.7, 0.999])
def test_one_flipped_bit_in_what_is_signed_or_in_the_signature_is_damage(
    vault: Vault, cache: Path, tmp_path: Path, name: str, place: float
):
    """In the part of a signature that only names the key, it is nothing: the HMAC is right."""
    saved = vault.save(cache, KEY, {}, 4)
    file = vault.place(saved.id) / name
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    file.write_bytes(content)
    (found,) = vault.verify()
    harmless = name == "signature" and place > 0.8
    assert found.state == ("ok" if harmless else "damaged")
    assert (vault.find(KEY) is not None) == harmless
    assert len(list(vault.folder.glob("damaged/*"))) == (not harmless)


def test_a_signature_from_before_keys_had_names_is_good(vault: Vault, cache: Path):
    saved = vault.save(cache, KEY, {}, 4)
    file = vault.place(saved.id) / "signature"
    file.write_text(file.read_text().partition(" ")[0])
    assert vault.whole(saved.id) is not None


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "a/../../b", "", "a//b", "./a", "a\0b"])
def test_a_manifest_whose_files_lead_out_of_the_folder_is_refused(path: str):
    assert parse_manifest(manifest(File("in/side", 1, 0o644, "00"))).files == 1
    with pytest.raises(DamagedSnapshot, match="is not that of a compile cache"):
        parse_manifest(manifest(File(path, 1, 0o644, "00")))


def test_a_manifest_with_odd_modes_or_of_another_kind_is_refused():
    with pytest.raises(DamagedSnapshot, match="is not that of a compile cache"):
        parse_manifest(manifest(File("program", 1, 0o4755, "00")))
    right = manifest(File("a", 1, 0o644, "00"))
    for text in (b"", b"[]", b"{}", b"\xff", right.replace(b'"parcels": [', b'"parcels": [1,')):
        with pytest.raises(DamagedSnapshot, match="its manifest can not be read"):
            parse_manifest(text)


def test_what_another_version_wrote_is_named_left_alone_and_in_nobodys_way(
    vault: Vault, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as earlier:
        earlier.setattr("dflash.compilation.snapshots.SCHEMA", 1)
        old = vault.save(cache, KEY, {}, 4)
    new = vault.save(cache, KEY, {}, 4)
    assert new.id != old.id
    assert {each.id: each.state for each in vault.verify()} == {old.id: "other", new.id: "ok"}
    with pytest.raises(VaultError, match="its manifest has schema 1, and this dflash reads 2; pre-warm again"):
        vault.restore(old.id, tmp_path / "back")
    assert [each.id for each in vault.listed()] == [new.id]
    vault.remove(old.id)
    assert not vault.place(old.id).exists()


def manifest(file: File) -> bytes:
    parcels = (Parcel(0, 1, (file,), "00"),)
    return json.dumps(Snapshot(identity_of(KEY, parcels), KEY, {}, 1, 1.0, 1, parcels).to_json()).encode()


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "a b"])
def test_a_pin_has_a_plain_name(vault: Vault, cache: Path, name: str):
    saved = vault.save(cache, KEY, {}, 4)
    for act in (vault.pin, vault.release):
        with pytest.raises(UsageError, match="can not be the name of a pin"):
            act(name, saved.id)
    assert vault.pins() == {}
