"""Containers that operations make, on real managers: made once, then left alone; and a device that opens inside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dflash.errors import DFlashError
from dflash.hosts.chain import Docker, Lxc, Lxd, parse_chain
from dflash.hosts.connection import Connection
from dflash.hosts.reach import reach
from dflash.provision.checks import container
from dflash.provision.checks import inside as inside_layer
from dflash.provision.checks.wanted import Wanted
from dflash.provision.container import ContainerSpec, Mount
from dflash.provision.fact import Facts, read
from dflash.provision.facts.inside import OPENS
from dflash.provision.operations import docker, incus, lxc
from tests.lab.docker import IMAGE, docker_container
from tests.lab.docker import docker as run
from tests.lab.lxc import free_name, root_file_system
from tests.lab.lxd import IMAGE as LXD_IMAGE
from tests.lab.lxd import lxc as client
from tests.lab.lxd import lxd_instance
from tests.lab.service import alone
from tests.provision.carrying_out import carry_out, changes

pytestmark = pytest.mark.nightly

NODE = "/dev/loop-control"
"""A node that no container may open unless it is given it."""

OPEN = """
import errno, os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDWR))
        print("OK")
    except OSError as failure:
        print(errno.errorcode[failure.errno])
"""

LAB = (
    "lxc.apparmor.profile = unconfined",
    "lxc.init.cmd = /usr/bin/sleep infinity",
    "lxc.signal.halt = SIGKILL",  # a sleep that is pid 1 heeds no other
)


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """Waited for once, not before each container."""
    with alone():
        yield


def here() -> Connection:
    return reach(parse_chain("local"))


def inside(chain: str, *argv: str) -> str:
    with reach(parse_chain(chain)) as connection:
        result = connection.run(argv)
        assert result.code == 0, result.stderr
        return result.stdout.decode()


def opened(chain: str, *paths: str) -> list[str]:
    """What open(2) for reading and writing says inside of each."""
    return inside(chain, "python3", "-c", OPEN, *paths).split()


def found(connection: Connection, chain: str) -> list[str]:
    """What layer 4 finds, from outside."""
    want = Wanted(container=parse_chain(chain).hops[0])
    known = read(connection, [*container.HOST, *container.asked(want)])
    return [f"{each.severity} {each.name}".strip() for each in container.judge(known, Facts({}), want)]


def shm_of(chain: str) -> int:
    size, count = inside(chain, "stat", "-f", "-c", "%S %b", "/dev/shm").split()
    return int(size) * int(count)


def test_an_lxc_container_is_made_from_a_tarball_and_then_nothing_is_to_do(tmp_path: Path):
    name, chain = "dflash-lab-made", "lxc:dflash-lab-made"
    link = tmp_path / "libmade.so.1"
    link.symlink_to("libmade.so.1.2.3")
    (tmp_path / "libmade.so.1.2.3").write_text("as it was")
    (tmp_path / "libmade.so.1.2.4").write_text("after an update")
    bind = f"lxc.mount.entry = {link} usr/lib/libmade.so.1 none bind,ro,create=file 0 0"
    spec = ContainerSpec(
        image=str(root_file_system()),
        cores=1,
        memory_gib=1,
        shm_gib=1,
        privileged=True,
        devices=(NODE,),
        mounts=(Mount(str(tmp_path), "/data", read_only=True),),
        raw=(*LAB, bind),
    )
    operation = lxc.Container(Lxc(name), spec)
    with free_name(name) as place, here() as connection:
        made = [f"container {chain}", f"configuration of {chain}", f"state of {chain}"]
        assert changes(carry_out(connection, operation)) == made
        inside(chain, "mknod", "-m", "666", "/tmp/not-given", "c", "10", "232")
        assert opened(chain, NODE, "/tmp/not-given", "/data/libmade.so.1.2.3") == ["OK", "EPERM", "EROFS"]
        assert inside(chain, "cat", "/usr/lib/libmade.so.1") == "as it was"
        assert shm_of(chain) == 2**30
        assert changes(carry_out(connection, operation)) == []

        link.unlink()
        link.symlink_to("libmade.so.1.2.4")
        with (place / "config").open("a") as file:
            file.write("# a person's own\nlxc.environment = OWN=1\n")
        more = replace(operation, spec=replace(spec, shm_gib=2))
        assert changes(carry_out(connection, more)) == made[1:]
        assert shm_of(chain) == 2 * 2**30
        assert inside(chain, "cat", "/usr/lib/libmade.so.1") == "after an update"
        assert "# a person's own\nlxc.environment = OWN=1\n" in (place / "config").read_text()
        assert changes(carry_out(connection, more)) == []
        assert found(connection, chain) == ["ok"]
        connection.run(["lxc-stop", "-k", "-n", name])
        assert found(connection, chain) == ["block container-stopped"]
        assert found(connection, "lxc:nobody-home") == ["block no-container"]


def test_open_inside_says_which_layer_keeps_a_node_back():
    """Other nodes of the host stand for NVIDIA's, inside of the container alone."""
    name, chain = "dflash-lab-made", "lxc:dflash-lab-made"
    stand_ins = (
        "lxc.mount.entry = /dev/zero dev/nvidia0 none bind,create=file 0 0",
        "lxc.mount.entry = /dev/not-there dev/nvidia1 none bind,optional,create=file 0 0",
        f"lxc.mount.entry = {NODE} dev/nvidia-uvm none bind,create=file 0 0",
    )
    spec = ContainerSpec(image=str(root_file_system()), privileged=True, raw=(*LAB, *stand_ins))
    with free_name(name), here() as connection:
        carry_out(connection, lxc.Container(Lxc(name), spec))
        with reach(parse_chain(chain)) as end:
            known = read(end, inside_layer.INSIDE)
        opens = {
            "/dev/nvidia0": "OK",
            "/dev/nvidia1": "FILE",
            "/dev/nvidia-uvm": "EPERM",
            "/dev/nvidiactl": "ENOENT",
        }
        assert known[OPENS] == opens
        findings = inside_layer.judge(Facts({}), known, Wanted(2, parse_chain(chain).hops[0]))
        assert {each.name: each.subject for each in findings} == {
            "node-file": "/dev/nvidia1",
            "node-denied": "/dev/nvidia-uvm",
            "node-missing": "/dev/nvidiactl",
        }


def test_an_unprivileged_lxc_container_has_files_of_its_own_and_is_nobody_to_a_node_of_the_hosts_root():
    name, chain = "dflash-lab-own", "lxc:dflash-lab-own"
    spec = ContainerSpec(image=str(root_file_system()), devices=(NODE, "/dev/full"), raw=LAB)
    operation = lxc.Container(Lxc(name), spec)
    with free_name(name), here() as connection:
        assert len(changes(carry_out(connection, operation))) == 3
        assert inside(chain, "stat", "-c", "%u %g", "/etc/passwd").split() == ["0", "0"]
        assert inside(chain, "cat", "/proc/self/uid_map").split()[:2] != ["0", "0"]
        assert opened(chain, NODE, "/dev/full") == ["EACCES", "OK"]
        assert inside(chain, "ls", "/sys/module")
        assert changes(carry_out(connection, operation)) == []
        with pytest.raises(DFlashError, match="is unprivileged, and declared privileged; its files"):
            carry_out(connection, replace(operation, spec=replace(spec, privileged=True)))


def test_a_docker_container_is_made_and_one_that_must_be_made_anew_leaves_the_old_one(tmp_path: Path):
    name, chain = "dflash-lab-made", "docker:dflash-lab-made"
    (tmp_path / "file").touch()
    spec = ContainerSpec(
        image=IMAGE,
        cores=1,
        memory_gib=1,
        shm_gib=1,
        network="none",
        devices=(NODE,),
        mounts=(Mount(str(tmp_path), "/data", read_only=True),),
    )
    operation = docker.Container(Docker(name), spec)
    with docker_container(), here() as connection:
        try:
            assert changes(carry_out(connection, operation)) == [f"container {chain}"]
            inside(chain, "mknod", "-m", "666", "/tmp/not-given", "c", "10", "232")
            assert opened(chain, NODE, "/tmp/not-given", "/data/file") == ["OK", "EPERM", "EROFS"]
            assert shm_of(chain) == 2**30
            assert changes(carry_out(connection, operation)) == []

            more = replace(operation, spec=replace(spec, memory_gib=2, autostart=False))
            assert changes(carry_out(connection, more)) == [f"limits of {chain}"]
            assert changes(carry_out(connection, more)) == []
            assert found(connection, chain) == ["ok"]
            run("stop", "-t", "1", name)
            assert found(connection, chain) == ["block container-stopped"]
            assert found(connection, "docker:nobody-home") == ["block no-container"]
            assert changes(carry_out(connection, more)) == [f"state of {chain}"]

            larger = replace(more, spec=replace(more.spec, shm_gib=2))
            assert changes(carry_out(connection, larger)) == [f"container {chain}"]
            assert shm_of(chain) == 2 * 2**30
            assert changes(carry_out(connection, larger)) == []
            (aside,) = run("ps", "-a", "--filter", f"name={name}-", "--format", "{{.Names}}").stdout.decode().split()
            assert b"not-given" in run("diff", aside).stdout
        finally:
            run("rm", "-f", *run("ps", "-aq", "--filter", f"name={name}").stdout.decode().split(), check=False)


def test_an_lxd_instance_is_made_configured_and_then_left_alone(tmp_path: Path):
    name, chain = "dflash-lab-made", "lxd:dflash-lab-made"
    (tmp_path / "file").touch()
    spec = ContainerSpec(
        image=LXD_IMAGE,
        cores=1,
        shm_gib=1,
        privileged=True,
        storage="default",
        devices=(NODE,),
        mounts=(Mount(str(tmp_path), "/data", read_only=True),),
        raw=LAB,
    )
    operation = incus.Container(Lxd(name), spec)
    with lxd_instance(), here() as connection:
        try:
            made = [f"device node-dev-loop-control of {chain}", f"device mount-data of {chain}"]
            plan = changes(carry_out(connection, operation))
            assert plan == [f"container {chain}", *made, f"state of {chain}"]
            inside(chain, "mknod", "-m", "666", "/tmp/not-given", "c", "10", "232")
            assert opened(chain, NODE, "/tmp/not-given", "/data/file") == ["OK", "EPERM", "EROFS"]
            assert shm_of(chain) == 2**30
            assert changes(carry_out(connection, operation)) == []

            more = replace(operation, spec=replace(spec, shm_gib=2, mounts=(Mount(str(tmp_path), "/data"),)))
            changed = [f"configuration of {chain}", made[1], f"state of {chain}"]
            assert changes(carry_out(connection, more)) == changed
            assert opened(chain, "/data/file") == ["OK"]
            assert changes(carry_out(connection, more)) == []
            assert found(connection, chain) == ["ok"]
            client("stop", "-f", name)
            assert found(connection, chain) == ["block container-stopped"]
            assert found(connection, "lxd:nobody-home") == ["block no-container"]
        finally:
            client("delete", "-f", name, check=False)
