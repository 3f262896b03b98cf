"""Files and folders travel whole, resumed and checked, through real chains."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash.errors import StorageError
from dflash.hosts import transfer
from dflash.hosts.connection import Connection
from dflash.hosts.files import TransferFailed, _Inbox, get, put
from tests.hosts.conftest import NUMBER, connect
from tests.lab.sshd import Sshd

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=["local", f"lxc:{NUMBER}", f"ssh:lab/lxc:{NUMBER}"])
def there(request: pytest.FixtureRequest, lab_sshd: Sshd, lab_container: str) -> Iterator[Connection]:
    with connect(request.param) as connection:
        connection.run(["rm", "-rf", "/tmp/dflab"])
        connection.run(["mkdir", "/tmp/dflab"])
        yield connection
        connection.run(["rm", "-rf", "/tmp/dflab"])


@pytest.fixture(scope="module")
def here() -> Iterator[Connection]:
    with connect("local") as connection:
        yield connection


def tree(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """Every file's mode and content, every link's target, every folder's mode."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode & 0o7777
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (0 if path.is_symlink() else mode, content)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "source"
    (place / "deep" / "er").mkdir(parents=True)
    (place / "empty").mkdir()
    (place / "nothing").touch()
    (place / "deep" / "er" / "bytes").write_bytes(bytes(range(256)) * 3000)
    (place / "it's a $(name)\nof sorts").write_text("quoted")
    program = place / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o750)
    (place / "link").symlink_to("program")
    return place


def test_a_folder_goes_there_and_comes_back_the_same(there: Connection, folder: Path, tmp_path: Path):
    put(there, folder, "/tmp/dflab/it's here")
    get(there, "/tmp/dflab/it's here", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(folder)
    listed = there.run(["find", "/tmp/dflab", "-name", "*.part"])
    assert listed.stdout == b""


def test_a_file_replaces_another_at_once_and_keeps_its_mode(there: Connection, tmp_path: Path):
    file = tmp_path / "file"
    for content, mode in ((b"old" * 1000, 0o644), (b"new", 0o600)):
        file.write_bytes(content)
        file.chmod(mode)
        put(there, file, "/tmp/dflab/file")
        shown = there.run(["sh", "-c", "stat -c %a /tmp/dflab/file; cat /tmp/dflab/file"]).stdout
        assert shown == b"%o\n" % mode + content


def test_what_is_there_already_is_not_sent_again(here: Connection, folder: Path, tmp_path: Path):
    put(here, folder, str(tmp_path / "there"))
    before = {path: path.stat().st_ino for path in (tmp_path / "there").rglob("*") if path.is_file()}
    (folder / "nothing").write_text("now something")
    put(here, folder, str(tmp_path / "there"))
    after = {path: path.stat().st_ino for path in (tmp_path / "there").rglob("*") if path.is_file()}
    changed = {path.name for path in before if before[path] != after[path]}
    assert changed == {"nothing"}


def test_a_mode_that_alone_differs_is_set(here: Connection, tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("same")
    put(here, file, str(tmp_path / "there"))
    file.chmod(0o400)
    put(here, file, str(tmp_path / "there"))
    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o400


def test_a_killed_transfer_leaves_the_old_file_and_goes_on_where_it_was(here: Connection, tmp_path: Path):
    source, place = tmp_path / "source", tmp_path / "there"
    source.write_bytes(os.urandom(1 << 20) * 60)
    place.write_text("the old file")
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom tests.hosts.conftest import connect\n"
        "from dflash.hosts.files import put\n"
        "def told(done, total):\n    print(done, flush=True)\n    time.sleep(0.01)\n"
        "put(connect('local'), Path(sys.argv[1]), sys.argv[2], told)\n"
    )
    command = [sys.executable, "-B", "-c", program, str(source), str(place)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as caller:
        try:
            assert caller.stdout
            for line in caller.stdout:
                if int(line) > 4 << 20:
                    break
        finally:
            caller.kill()
    part = Path(os.fsdecode(transfer.part_of(os.fsencode(place), transfer.digest(os.fsencode(source)))))
    until = time.monotonic() + 10
    while not (part.exists() and part.stat().st_size) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.5)  # for the killed agent's own children to be gone
    kept = part.stat().st_size
    assert 0 < kept < source.stat().st_size
    assert place.read_text() == "the old file"
    told: list[int] = []
    put(here, source, str(place), lambda done, total: told.append(done))
    assert told[0] == kept, "it began again at nothing"
    assert place.read_bytes() == source.read_bytes()
    assert not part.exists()


def test_who_is_interrupted_does_not_wait_for_the_rest(
    here: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(300_000_000)

    def told(bytes_done: int, total: int) -> None:
        if bytes_done > 8 << 20:
            raise KeyboardInterrupt

    sent: list[int] = []
    taken = _Inbox.put

    def counted(inbox: _Inbox, data: bytes) -> None:
        sent.append(len(data))
        taken(inbox, data)

    monkeypatch.setattr(_Inbox, "put", counted)
    with pytest.raises(KeyboardInterrupt):
        get(here, str(tmp_path / "large"), tmp_path / "there", told)
    assert 8 << 20 < sum(sent) < 100 << 20
    assert get(here, __file__, tmp_path / "after").total > 0  # the connection is as good as before


def test_a_part_with_wrong_bytes_is_thrown_away_and_never_used(here: Connection, tmp_path: Path):
    source, place = tmp_path / "source", tmp_path / "there"
    source.write_bytes(b"right" * 1000)
    part = Path(os.fsdecode(transfer.part_of(os.fsencode(place), transfer.digest(os.fsencode(source)))))
    part.write_bytes(b"wrong")
    with pytest.raises(TransferFailed, match="arrived with another hash"):
        put(here, source, str(place))
    assert not place.exists()
    put(here, source, str(place))
    assert place.read_bytes() == source.read_bytes()


def test_two_transfers_of_one_file_at_once_both_succeed(tmp_path: Path):
    source, place = tmp_path / "source", tmp_path / "there" / "file"
    source.write_bytes(os.urandom(1 << 20) * 20)
    failures: list[BaseException] = []

    def send() -> None:
        try:
            with connect("local") as connection:
                put(connection, source, str(place))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert place.read_bytes() == source.read_bytes()
    assert [path.name for path in place.parent.iterdir()] == ["file"]


def test_a_folder_that_may_not_be_written_arrives_with_its_mode(here: Connection, tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").touch()
    source.chmod(0o555)
    put(here, source, str(tmp_path / "there"))
    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o555


def test_a_file_does_not_take_the_place_of_a_folder(here: Connection, tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "there").mkdir()
    with pytest.raises(TransferFailed, match="is a folder; name the file in it"):
        put(here, tmp_path / "file", str(tmp_path / "there"))
    assert list((tmp_path / "there").iterdir()) == []


def test_a_file_below_a_link_that_came_along_is_refused(tmp_path: Path):
    """A far end that is not to be trusted could write anywhere with it."""
    victim = tmp_path / "victim"
    victim.mkdir()
    manifest = [b"manifest", b"", b"d", b"755", b"0", b"", b"l", b"l", b"777", b"0", os.fsencode(victim)]
    manifest += [b"l/file", b"f", b"644", b"0", b"0" * 64]
    sent = bytearray()
    transfer.send(sent.extend, manifest)
    stream = io.BytesIO(bytes(sent))
    with pytest.raises(transfer.TransferError, match="l is a link, so nothing is put below it"):
        transfer.receive(os.fsencode(tmp_path / "target"), stream.read, lambda data: None)
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (["", "d", "", "a", "l", "{victim}"], ["", "d", "", "a/x", "f", "{nothing}"]),
        (["", "d", "", "a", "l", "{victim}"], ["", "d", "", "a/deep", "d", ""]),
        (["", "d", "", "a", "l", "{victim}"], ["", "d", "", "a", "d", ""]),
        (["", "l", "{victim}"], ["", "d", "", "x", "f", "{nothing}"]),
        (["", "d", "", "a", "l", "{victim}"], ["", "d", "", "./a/x", "f", "{nothing}"]),
        (["", "d", "", ".x.e3b0c44298fc1c14.part", "l", "{victim}/file"], ["", "d", "", "x", "f", "{nothing}"]),
        (["", "d", "", "x", "f", "{nothing}", ".x.e3b0c44298fc1c14.part", "l", "{victim}/file"], []),
    ],
)
def test_no_link_of_this_or_an_earlier_transfer_leads_out_of_the_folder(
    tmp_path: Path, first: list[str], then: list[str]
):
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (victim / "file").touch(mode=0o600)
    for items in (first, then):
        words = [os.fsencode(each.format(victim=victim, nothing=hashlib.sha256().hexdigest())) for each in items]
        sent = bytearray()
        rows = [words[at : at + 3] for at in range(0, len(words), 3)]
        transfer.send(
            sent.extend, [b"manifest", *(each for row in rows for each in (row[0], row[1], b"755", b"0", row[2]))]
        )
        with contextlib.suppress(transfer.TransferError, OSError):
            transfer.receive(os.fsencode(tmp_path / "target"), io.BytesIO(bytes(sent)).read, lambda data: None)
    assert tree(victim) == {"file": (0o600, b"")}
    assert victim.stat().st_mode & 0o777 == 0o700


def test_a_link_in_the_way_is_named(here: Connection, folder: Path, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "deep").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TransferFailed, match="there/deep is a link, so nothing is put below it: move it away"):
        put(here, folder, str(tmp_path / "there"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_missing_source_is_named_with_its_side(there: Connection, tmp_path: Path):
    with pytest.raises(StorageError, match=f"{tmp_path}/none: No such file"):
        put(there, tmp_path / "none", "/tmp/dflab/x")
    with pytest.raises(TransferFailed, match=r"^.*: /tmp/dflab/none: No such file"):
        get(there, "/tmp/dflab/none", tmp_path / "x")


def test_a_place_that_can_not_be_written_is_named(there: Connection, folder: Path):
    with pytest.raises(TransferFailed, match="/proc/"):
        put(there, folder / "program", "/proc/nothing-goes-here")


def test_a_path_that_leads_out_of_the_folder_is_refused(tmp_path: Path):
    sent: list[bytes] = []
    transfer.send(sent.append, [b"manifest", b"../outside", b"f", b"644", b"1", b"0" * 64])
    stream = memoryview(sent[0])
    place = [0]

    def read(size: int) -> bytes:
        data = bytes(stream[place[0] : place[0] + size])
        place[0] += size
        return data

    with pytest.raises(transfer.TransferError, match="leads out"):
        transfer.receive(os.fsencode(tmp_path / "in"), read, sent.append)
