"""This project's own package arrives at a host whole or not at all, once for each content."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash.environments.remote import in_use
from dflash.errors import UsageError
from dflash.hosts import unpacking
from dflash.hosts.chain import parse_chain
from dflash.hosts.connection import Connection
from dflash.hosts.files import TransferFailed
from dflash.hosts.inventory import Host
from dflash.hosts.package import PACKAGE, send_package
from tests.hosts.conftest import NUMBER, connect
from tests.lab.sshd import Sshd
from tests.mounts import small_file_system


@pytest.fixture(params=["ssh:lab", f"ssh:lab/lxc:{NUMBER}"])
def host(request: pytest.FixtureRequest, lab_sshd: Sshd, lab_container: str) -> Host:
    return Host("there", parse_chain(request.param), root=f"/tmp/dflab-code-{time.monotonic_ns()}")


@pytest.fixture
def there(host: Host) -> Iterator[Connection]:
    with connect(str(host.chain)) as connection:
        yield connection
        connection.run(["rm", "-rf", str(host.root)])


def listed(there: Connection, place: str) -> list[str]:
    return there.run(["ls", "-A", place]).stdout.decode().split()


def test_a_program_of_the_package_runs_there(there: Connection, host: Host):
    place = send_package(there, host)
    program = "import dflash.hosts.unpacking as one; print(one.__file__)"  # a container's python3 is minimal
    said = there.run(["python3", "-c", program], env={"PYTHONPATH": place})
    assert said.stdout.decode().strip() == f"{place}/dflash/hosts/unpacking.py", said.stderr
    assert place.startswith(f"{host.root}/code/")


def test_it_is_sent_once_for_each_content(there: Connection, host: Host, tmp_path: Path, monkeypatch):
    package = tmp_path / "dflash"
    (package / "deep" / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "deep" / "table.json").write_text("{}")
    (package / "deep" / "__pycache__" / "x.pyc").write_text("left")
    first = send_package(there, host, package)
    sent = []
    run = Connection.run
    monkeypatch.setattr(
        Connection, "run", lambda self, argv, **settings: sent.append(settings) or run(self, argv, **settings)
    )
    assert send_package(there, host, package) == first
    assert sent == [{"stdin": b""}]
    assert sorted(listed(there, f"{first}/dflash")) == ["__init__.py", "deep"]
    assert listed(there, f"{first}/dflash/deep") == ["table.json"]
    (package / "__init__.py").write_text("new = 1")
    second = send_package(there, host, package)
    assert second != first
    assert sorted(listed(there, f"{host.root}/code")) == sorted([Path(first).name, Path(second).name])


def test_what_somebody_changed_there_is_moved_aside_and_made_again(there: Connection, host: Host, tmp_path: Path):
    package = tmp_path / "dflash"
    package.mkdir()
    (package / "one.py").write_text("right = 1")
    place = send_package(there, host, package)
    there.run(["sh", "-c", 'echo wrong > "$1"/dflash/one.py; mkdir "$1"/../.draft-left', "sh", place])
    assert send_package(there, host, package) == place
    assert there.run(["cat", f"{place}/dflash/one.py"]).stdout == b"right = 1"
    assert sorted(listed(there, f"{host.root}/code")) == [Path(place).name, f"{Path(place).name}.changed-1"]


def test_on_this_machine_it_is_the_projects_own_folder(tmp_path: Path):
    host = Host("local", parse_chain("local"), root=str(tmp_path / "root"))
    with connect("local") as here:
        assert send_package(here, host) == str(PACKAGE.parent)
    assert not (tmp_path / "root").exists()


def test_a_full_disk_there_is_one_line_and_leaves_nothing(lab_sshd: Sshd, tmp_path: Path):
    with small_file_system(tmp_path / "small", "100k") as small, connect("ssh:lab") as there:
        host = Host("there", parse_chain("ssh:lab"), root=str(small))
        with pytest.raises(TransferFailed, match=r"ssh:lab: .*No space left on device"):
            send_package(there, host)
        assert list((small / "code").iterdir()) == []


def test_a_package_that_arrives_otherwise_than_it_was_sent_is_not_kept(tmp_path: Path):
    package = unpacking.read_package(str(PACKAGE))
    with pytest.raises(OSError, match="another hash"):
        unpacking.take(str(tmp_path), unpacking.digest(package), package[:-1] + b"#")
    assert list(tmp_path.iterdir()) == []


def test_nothing_lies_beside_the_package_and_no_compiled_file_in_it(tmp_path: Path):
    package = unpacking.read_package(str(PACKAGE))
    identity = unpacking.digest(package)
    place = Path(unpacking.take(str(tmp_path), identity, package))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (place / "dflash" / "__pycache__").mkdir()
    (place / "dflash" / "__pycache__" / "errors.cpython-311.pyc").touch()
    (place / "dflash" / "hosts" / "__pycache__").symlink_to(tmp_path / "mine")
    assert unpacking.take(str(tmp_path), identity, b"") == str(place)
    assert not list(place.rglob("__pycache__"))
    assert (tmp_path / "mine" / "file").exists()
    (place / "torch.py").write_text("wrong")
    assert unpacking.take(str(tmp_path), identity, b"") == ""
    assert unpacking.take(str(tmp_path), identity, package) == str(place)
    assert [path.name for path in place.iterdir()] == ["dflash"]
    assert (place.parent / f"{identity}.changed-1" / "torch.py").exists()


def row(name: str, *, current: bool = True, finished: bool = True) -> dict[str, object]:
    return {"name": name, "path": f"/root/envs/{name}/0", "current": current, "finished": finished}


def test_the_environment_to_run_from_is_the_one_named_or_the_only_one_in_use():
    rows = [row("serve", current=False), row("train")]
    assert in_use(rows, "", "gpu1")["name"] == "train"
    assert in_use([*rows, row("other")], "train", "gpu1")["name"] == "train"
    for found, name, says in (
        (rows, "serve", "gpu1: no generation of serve is in use there; ./inv env.create serve --host gpu1"),
        ([row("train", finished=False)], "", "gpu1: no environment is in use there; ./inv env.create NAME"),
        ([*rows, row("more")], "", r"2 environments are in use there \(train, more\); say which: --environment train"),
    ):
        with pytest.raises(UsageError, match=says):
            in_use(found, name, "gpu1")
