"""Making a generation: whole or not at all, once for each lock, and a clear line where it can not be made."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dflash.environments.lock import read_lock
from dflash.environments.remote import HostEnvironments, on_host
from dflash.errors import ConfigError, EnvironmentMismatch, UsageError
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from tests.environments.test_generations import REPOSITORY, path_of, tree
from tests.lab.service import wait_until
from tests.lab.sshd import Sshd
from tests.wheels import make_wheel


def test_a_generation_is_named_by_its_lock_and_made_once(environments: HostEnvironments, folder: Path, wheels: Path):
    made = environments.create(folder, wheels=wheels)
    assert made.made
    assert read_lock(folder / "requirements.lock").id.startswith(made.id)
    place = path_of(environments, made.id)
    done = subprocess.run([place / "bin/python", "-c", "import torch, numpy; print(numpy.x)"], capture_output=True)
    assert done.stdout == b"1\n"
    before = tree(place)
    again = environments.create(folder, wheels=wheels)
    assert (again.id, again.made) == (made.id, False)
    assert tree(place) == before


def test_every_file_is_in_the_record(environments: HostEnvironments, folder: Path, wheels: Path):
    place = path_of(environments, environments.create(folder, wheels=wheels).id)
    record = environments.read(str(place)).snapshot.record
    assert record is not None
    here = {name for name in tree(place) if name != "dflash-record.json"} - {".lock", ".gitignore", "CACHEDIR.TAG"}
    assert here <= set(record.files)
    assert all(each.sha256 for each in record.files.values())


def test_what_was_interrupted_is_never_used_and_made_anew_by_the_next_call(
    host: Host, environments: HostEnvironments, folder: Path, wheels: Path
):
    program = (
        "import sys\nfrom pathlib import Path\nfrom dflash.environments.remote import on_host\n"
        "from dflash.hosts.chain import parse_chain\nfrom dflash.hosts.inventory import Host\n"
        "with on_host(Host('here', parse_chain('local'), root=sys.argv[1])) as environments:\n"
        "    environments.create(Path(sys.argv[2]), wheels=Path(sys.argv[3]))\n"
    )
    command = [sys.executable, "-B", "-c", program, str(host.root), str(folder), str(wheels)]
    identity = read_lock(folder / "requirements.lock").id[:16]
    place = Path(str(host.root)) / "envs" / "small" / identity
    with subprocess.Popen(command, cwd=REPOSITORY) as caller:
        wait_until(lambda: (place / "pyvenv.cfg").exists(), "the beginning of the generation")
        caller.send_signal(signal.SIGKILL)
    wait_until(lambda: not at_work(place), "the end of what it had started")
    assert [row["finished"] for row in environments.listed()] == [False]
    with pytest.raises(UsageError, match="there is no finished generation"):
        environments.use("small", identity)
    made = environments.create(folder, wheels=wheels)
    assert (made.id, made.made) == (identity, True)
    assert (place / "lib").exists()
    findings, _ = environments.verify(folder, str(place))
    assert [each for each in findings if each.severity == "block"] == []


def at_work(place: Path) -> list[str]:
    """Processes whose command line names a generation."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(place).encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
    return found


def test_two_makers_at_once_make_one(host: Host, folder: Path, wheels: Path):
    made = []

    def make() -> None:
        with on_host(host) as environments:
            made.append(environments.create(folder, wheels=wheels))

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.made for each in made) == [False, True]


def test_a_host_behind_ssh_gets_uv_and_the_wheels(lab_sshd: Sshd, folder: Path, wheels: Path):
    told: list[str] = []
    host = Host("far", parse_chain("ssh:lab-bash"), root="/tmp/dflab-envs")
    with on_host(host, told.append) as environments:
        try:
            made = environments.create(folder, wheels=wheels)
            environments.use("small", made.id)
            (row,) = environments.listed()
            assert (row["id"], row["current"]) == (made.id, True)
            findings, _ = environments.verify(folder, row["path"])
            assert [each for each in findings if each.severity == "block"] == []
            assert told[0].startswith("sending uv ")
        finally:
            environments._connection.run(["rm", "-rf", "/tmp/dflab-envs"])


# --- what can not be made


def test_a_python_that_is_not_there_is_one_line(environments: HostEnvironments, folder: Path, wheels: Path):
    spec = folder / "env.yaml"
    spec.write_text(spec.read_text().replace(">=3.11,<3.14", ">=3.99"))
    with pytest.raises(EnvironmentMismatch, match=r"local: there is no Python >=3\.99 here; install one"):
        environments.create(folder, wheels=wheels)
    assert environments.listed() == []


def test_a_wheel_that_is_missing_is_named_and_nothing_is_left(
    environments: HostEnvironments, folder: Path, wheels: Path
):
    next(wheels.glob("triton-*")).unlink()
    with pytest.raises(EnvironmentMismatch, match=r"could not be made as its lock pins it: .*triton"):
        environments.create(folder, wheels=wheels)
    assert environments.listed() == []


def test_a_wheel_of_other_bytes_is_refused(environments: HostEnvironments, folder: Path, wheels: Path):
    make_wheel(wheels, "triton", "3.6.0", {"triton/__init__.py": b"other = True\n"})
    with pytest.raises(EnvironmentMismatch, match=r"[Hh]ash"):
        environments.create(folder, wheels=wheels)


def test_a_lock_with_another_torch_than_declared_is_refused(environments: HostEnvironments, folder: Path, wheels: Path):
    spec = folder / "env.yaml"
    spec.write_text(spec.read_text().replace('torch: "2.11.0"', 'torch: "2.11.0+cu128"'))
    with pytest.raises(
        EnvironmentMismatch, match=r"requirements.lock:1: torch is locked as 2\.11\.0, env.yaml declares"
    ):
        environments.create(folder, wheels=wheels)


def test_a_lock_that_can_not_be_read_is_named_with_its_line(environments: HostEnvironments, folder: Path):
    (folder / "requirements.lock").write_text("torch==2.11.0\n")
    with pytest.raises(ConfigError, match=r"requirements.lock:1:1: torch has no sha256 hash"):
        environments.create(folder)
