"""The vault of a host through a real sshd: the same verbs, and snapshots that travel whole or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash import cli_cache
from dflash.compilation import travel
from dflash.compilation.cachekey import write_key
from dflash.compilation.remote import HostVault, vault_at
from dflash.compilation.vault import Vault, VaultError
from dflash.errors import BusyError, EnvironmentMismatch, StorageError, UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.files import TransferFailed
from dflash.hosts.inventory import Host
from tests.compilation.caches import KEY, environment, fill, tree
from tests.hosts.conftest import lab_sshd  # noqa: F401 - a fixture
from tests.lab.network import link
from tests.lab.service import wait_until
from tests.lab.sshd import Sshd, sshd_behind
from tests.mounts import small_file_system

REPOSITORY = Path(__file__).parents[2]
CARRIER = """
import os, sys, time
from pathlib import Path
from dflash.compilation.remote import vault_at
from dflash.compilation.vault import Vault
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host

def progress(done, total):
    if done > total // 2:
        if not mark:
            os.kill(os.getpid(), 9)
        if half:
            half.pop().touch()
            while Path(mark).exists():
                time.sleep(0.05)

chain, mark, way, root, folder, key, identity = sys.argv[1:]
half = [Path(mark)]
with vault_at(Host("gpu1", parse_chain(chain), root=root)) as there:
    getattr(there, way)(Vault(Path(folder), Path(key)), identity, progress)
"""
"""Carries a snapshot. Half way it is killed; or makes the file MARK, if one is named, and waits till that is gone."""


def carried(host: Host, way: str, vault: Vault, identity: str) -> list[str]:
    """What the program above takes after chain and mark."""
    return [way, str(host.root), str(vault.folder), str(vault._signer.key_file), identity]


@pytest.fixture
def host(lab_sshd: Sshd, tmp_path: Path) -> Host:  # noqa: F811
    environment(tmp_path / "root", "train", DFLASH_VAULT_KEY=str(tmp_path / "there" / "key"))
    return Host("gpu1", parse_chain("ssh:lab"), root=str(tmp_path / "root"))


@pytest.fixture
def there(host: Host) -> Iterator[HostVault]:
    with vault_at(host) as opened:
        yield opened


@pytest.fixture
def far_vault(tmp_path: Path) -> Vault:
    """The host's vault, looked at from this machine."""
    return Vault(tmp_path / "root" / "vault", tmp_path / "there" / "key")


def dense(cache: Path, megabytes: int = 4) -> Path:
    """A cache of some megabytes that no compression makes small."""
    shutil.rmtree(cache)
    fill(cache)
    (cache / "large").write_bytes(os.urandom(megabytes << 20))
    return cache


def drafts(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".") and path.name != ".lock"]


def test_a_snapshot_travels_there_and_back_under_its_own_name(
    there: HostVault, vault: Vault, far_vault: Vault, cache: Path, tmp_path: Path
):
    saved = vault.save(cache, KEY, {"host": "here"}, 4)
    assert there.put(vault, saved.id) is True
    (arrived,) = far_vault.listed()
    assert (arrived.id, arrived.key, arrived.graphs, arrived.recorded) == (saved.id, KEY, 4, {"host": "here"})
    assert there.put(vault, saved.id) is False
    back = Vault(tmp_path / "back" / "vault", tmp_path / "back" / "key")
    assert (there.get(back, saved.id), there.get(back, saved.id)) == (True, False)
    back.restore(saved.id, tmp_path / "restored")
    assert tree(tmp_path / "restored") == tree(cache)
    assert drafts(back.folder) == drafts(far_vault.folder) == []


@pytest.mark.parametrize("way", ["put", "get"])
def test_a_transfer_killed_half_way_leaves_nothing_that_is_used_and_is_gone_on_with(
    host: Host, vault: Vault, far_vault: Vault, cache: Path, way: str
):
    source, target = (vault, far_vault) if way == "put" else (far_vault, vault)
    saved = source.save(dense(cache), KEY, {}, 4)
    words = ["ssh:lab", "", *carried(host, way, vault, saved.id)]
    done = subprocess.run([sys.executable, "-c", CARRIER, *words], cwd=REPOSITORY, check=False)
    assert done.returncode == -9
    is_gone_on_with(host, way, vault, target, saved.id)


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["put", "get"])
def test_a_transfer_whose_link_is_cut_half_way_leaves_nothing_that_is_used_and_is_gone_on_with(
    host: Host,
    vault: Vault,
    far_vault: Vault,
    cache: Path,
    way: str,
    lab_sshd: Sshd,  # noqa: F811
    tmp_path: Path,
):
    source, target = (vault, far_vault) if way == "put" else (far_vault, vault)
    saved, mark = source.save(dense(cache, megabytes=16), KEY, {}, 4), tmp_path / "half"
    words = ["ssh:lab-far", str(mark), *carried(host, way, vault, saved.id)]
    with link() as made, sshd_behind(made, lab_sshd):
        command = made.inside(sys.executable, "-B", "-c", CARRIER, *words)
        with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE) as carrier:
            wait_until(mark.exists, "half of the transfer")
            made.cut()
            mark.unlink()
            try:
                _, said = carrier.communicate(timeout=30)
            finally:
                carrier.kill()
                made.mend()
    assert b"LostConnection: ssh:lab-far: the connection was lost" in said
    is_gone_on_with(host, way, vault, target, saved.id)


def is_gone_on_with(host: Host, way: str, vault: Vault, target: Vault, identity: str) -> None:
    """After a transfer that broke off, nothing of it is used, and the next one brings the rest."""
    assert target.listed() == []
    assert list(target.verify()) == []
    steps: list[int] = []
    with vault_at(host) as there:
        assert getattr(there, way)(vault, identity, lambda done, total: steps.append(done)) is True
    assert steps[0] > 1 << 20, "it went on where it was"
    assert target.whole(identity) is not None
    assert drafts(target.folder) == []


def test_a_snapshot_that_is_damaged_here_is_found_before_it_is_sent(
    there: HostVault, vault: Vault, far_vault: Vault, cache: Path
):
    saved = vault.save(cache, KEY, {}, 4)
    archive = vault.place(saved.id) / "files.zst"
    archive.write_bytes(archive.read_bytes()[:-1] + b"\0")
    with pytest.raises(VaultError, match=r"is damaged .* and set aside"):
        there.put(vault, saved.id)
    assert not far_vault.folder.exists()


def test_a_snapshot_that_is_damaged_there_is_set_aside_there_and_one_from_here_takes_its_place(
    there: HostVault, vault: Vault, far_vault: Vault, cache: Path
):
    saved = vault.save(cache, KEY, {}, 4)
    there.put(vault, saved.id)
    archive = far_vault.place(saved.id) / "files.zst"
    archive.write_bytes(archive.read_bytes()[:-1] + b"\0")
    fresh = Vault(vault.folder.with_name("fresh"), vault._signer.key_file)
    with pytest.raises(VaultError, match=f"ssh:lab: .*snapshot {saved.id} is damaged .* and set aside"):
        there.get(fresh, saved.id)
    assert there.put(vault, saved.id) is True
    assert [each["state"] for each in there.ask("verify")] == ["ok"]
    assert len(list((far_vault.folder / "damaged").iterdir())) == 1


def test_what_arrives_otherwise_than_it_was_sent_is_refused_and_gone(vault: Vault, cache: Path, tmp_path: Path):
    source = Vault(tmp_path / "source", tmp_path / "source-key")
    saved = source.save(cache, KEY, {}, 4)
    mark = travel.mark_of(source.place(saved.id))

    def change_a_byte(folder: Path) -> None:
        content = (folder / "files.zst").read_bytes()
        (folder / "files.zst").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    def change_the_manifest(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(path.read_text().replace("g++ 12", "g++ 13"))

    def send_a_link(folder: Path) -> None:
        (folder / "files.zst").unlink()
        (folder / "files.zst").symlink_to(source.place(saved.id) / "files.zst")

    def send_half(folder: Path) -> None:
        (folder / "files.zst").unlink()

    def send_a_manifest_that_is_a_link(folder: Path) -> None:
        (folder / "manifest.json").unlink()
        (folder / "manifest.json").symlink_to(source.place(saved.id) / "manifest.json")

    for change in (change_a_byte, change_the_manifest, send_a_link, send_a_manifest_that_is_a_link, send_half):
        place = travel.expected(vault, saved.id, mark)
        assert place is not None
        shutil.copytree(source.place(saved.id), place)
        change(place)
        with pytest.raises(VaultError, match=r"is not here (as it was sent|whole).*; send it again"):
            travel.arrived(vault, saved.id, mark)
        assert vault.listed() == []
        shutil.rmtree(place, ignore_errors=True)
    for wrong in ("", "../../x", "0123"):
        with pytest.raises(UsageError):
            travel.expected(vault, saved.id, wrong)


def test_a_disk_that_is_full_there_is_one_line_and_is_left_as_it_was(
    host: Host, vault: Vault, cache: Path, tmp_path: Path
):
    saved = vault.save(dense(cache), KEY, {}, 4)
    with small_file_system(tmp_path / "disk", "1m") as disk:
        environment(tmp_path / "root", "full", DFLASH_VAULT=str(disk), DFLASH_VAULT_KEY=str(tmp_path / "there" / "key"))
        with vault_at(host, "full") as there:
            with pytest.raises(TransferFailed, match=r"ssh:lab: .*No space left on device"):
                there.put(vault, saved.id)
            assert list(disk.iterdir()) == []


def test_a_disk_that_is_full_here_is_one_line_and_is_left_as_it_was(
    there: HostVault, vault: Vault, far_vault: Vault, cache: Path, tmp_path: Path
):
    saved = far_vault.save(dense(cache), KEY, {}, 4)
    with small_file_system(tmp_path / "disk", "1m") as disk:
        with pytest.raises(StorageError, match="No space left on device"):
            there.get(Vault(disk / "vault", vault._signer.key_file), saved.id)
        assert list((disk / "vault").iterdir()) == []


# --- the verbs


@pytest.fixture
def where(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, str]:
    """`--host gpu1`, which an inventory knows."""
    (tmp_path / "hosts.yaml").write_text(f"gpu1:\n  chain: ssh:lab\n  root: {host.root}\n")
    monkeypatch.setattr(cli_cache, "HOME", tmp_path)
    return "gpu1", "", ""


def test_every_verb_does_on_a_host_what_it_does_here(
    where: tuple[str, str, str], far_vault: Vault, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_key(cache, KEY, 4)
    cli_cache.save(folder=str(cache), where=where, as_json=False)
    (saved,) = far_vault.listed()
    assert capsys.readouterr().out == f"{saved.id}: 4 graphs, 43 files, 1.9 MB\n"
    cli_cache.pin(snapshot=saved.id, run="run-1", release=False, where=where)
    cli_cache.listed(where=where, as_json=False)
    assert "4 graphs, 43 files, 1.9 MB  2.13.0  pinned by run-1\n" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        cli_cache.verify(where=where, as_json=False)
    assert capsys.readouterr().out == f"{saved.id}  ok\n1 snapshots, 0 damaged\n"
    for says in ("", f"moved aside: {tmp_path / 'back.aside-1'}\n"):
        cli_cache.restore(snapshot=saved.id, to=str(tmp_path / "back"), where=where)
        assert capsys.readouterr().out == f"{tmp_path / 'back'}: 43 files, 1.9 MB\n{says}"
    assert tree(tmp_path / "back") == tree(cache)
    with pytest.raises(BusyError, match=r"ssh:lab: .* pinned by run-1; .* --for-run run-1 --release --host gpu1"):
        cli_cache.remove(snapshot=saved.id, where=where)
    with pytest.raises(UsageError, match=f"run-1 does not keep snapshot 00, but {saved.id}"):
        cli_cache.pin(snapshot="00", run="run-1", release=True, where=where)
    cli_cache.pin(snapshot=saved.id, run="run-1", release=True, where=where)
    cli_cache.get(snapshot=saved.id, host="gpu1", environment="", root=str(tmp_path))
    cli_cache.put(snapshot=saved.id, host="gpu1", environment="", root=str(tmp_path))
    capsys.readouterr()
    cli_cache.remove(snapshot=saved.id, where=where)
    assert far_vault.listed() == []
    assert [each.id for each in cli_cache.vault_of(str(tmp_path)).listed()] == [saved.id]


def test_what_goes_wrong_on_a_host_is_the_error_that_it_would_be_here(there: HostVault, cache: Path):
    for role, words, kind, says in (
        ("show", ["0" * 16], VaultError, r"ssh:lab: .*: there is no snapshot 0+; \./inv cache\.list --host gpu1 shows"),
        ("remove", ["../x"], UsageError, r"ssh:lab: '\.\./x' is not the id of a snapshot"),
        ("release", ["a b", "0"], UsageError, "ssh:lab: --for-run: 'a b' can not be the name of a pin"),
        ("save", [str(cache)], UsageError, r"ssh:lab: .*nobody knows .* run \./inv prewarm"),
    ):
        with pytest.raises(kind, match=says):
            there.ask(role, *words)


def test_the_python_that_is_asked_is_that_of_an_environment(
    where: tuple[str, str, str],
    tmp_path: Path,
    lab_sshd: Sshd,  # noqa: F811
):
    environment(tmp_path / "root", "broken")
    python = tmp_path / "root/envs/broken/0123456789abcdef/bin/python"
    with pytest.raises(
        UsageError, match=r"2 environments are in use there \(broken, train\); say which: --environment"
    ):
        cli_cache.ask(where, "list")
    assert cli_cache.ask((where[0], "train", ""), "list") == []
    python.write_text('#!/bin/sh\nexec python3 -S "$@"\n')
    with pytest.raises(EnvironmentMismatch, match=f"ssh:lab: {python}: ModuleNotFoundError.*; make a clean one"):
        cli_cache.ask((where[0], "broken", ""), "list")
    with pytest.raises(
        UsageError, match=r"no generation of other is in use there; \./inv env\.create other --host gpu1"
    ):
        cli_cache.ask((where[0], "other", ""), "list")


def test_a_host_that_makes_no_sense_is_one_line(where: tuple[str, str, str]):
    for host, root, says in (
        ("gpu1,gpu2", "", "takes one host"),
        ("gpu2", "", "there is no host 'gpu2'"),
        ("gpu1", "/", "--root"),
    ):
        with pytest.raises(UsageError, match=says):
            cli_cache.ask((host, "", root), "list")
    for host in ("", "local"):
        with pytest.raises(UsageError, match="that is this machine"):
            cli_cache.put(snapshot="0", host=host, environment="", root="")
