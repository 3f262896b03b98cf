"""Containers that operations make, on real managers: made once, then left alone; and a device that opens inside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dflash.hosts.chain import Lxc, parse_chain
from dflash.hosts.connection import Connection
from dflash.hosts.reach import reach
from dflash.provision.container import ContainerSpec, Mount
from dflash.provision.operations import lxc
from tests.lab.lxc import free_name, root_file_system
from tests.provision.carrying_out import carry_out, changes

pytestmark = pytest.mark.nightly

NODE, OTHER = "/dev/loop-control", (10, 232)
"""A node that no container may open unless it is given it, and the number of another one (/dev/kvm)."""

OPEN = """
import errno, os, stat, sys
def said(path):
    try:
        os.close(os.open(path, os.O_RDWR))
        return "OK"
    except OSError as failure:
        return errno.errorcode[failure.errno]
os.mknod("/tmp/other", stat.S_IFCHR | 0o666, os.makedev(int(sys.argv[2]), int(sys.argv[3])))
print(said(sys.argv[1]), said("/tmp/other"), said(sys.argv[4]))
os.remove("/tmp/other")
"""

LAB = ("lxc.apparmor.profile = unconfined", "lxc.init.cmd = /usr/bin/sleep infinity")


def here() -> Connection:
    return reach(parse_chain("local"))


def inside(chain: str, *argv: str) -> str:
    with reach(parse_chain(chain)) as connection:
        result = connection.run(argv)
        assert result.code == 0, result.stderr
        return result.stdout.decode()


def opened(chain: str, file: str) -> list[str]:
    """What open(2) for writing says inside of: the given node, one that was not given, a file."""
    return inside(chain, "python3", "-c", OPEN, NODE, *map(str, OTHER), file).split()


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
        assert opened(chain, "/data/libmade.so.1.2.3") == ["OK", "EPERM", "EROFS"]
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


def test_an_unprivileged_lxc_container_has_the_files_of_its_own_root():
    name, chain = "dflash-lab-own", "lxc:dflash-lab-own"
    operation = lxc.Container(Lxc(name), ContainerSpec(image=str(root_file_system()), raw=LAB))
    with free_name(name), here() as connection:
        assert len(changes(carry_out(connection, operation))) == 3
        assert inside(chain, "stat", "-c", "%u %g", "/etc/passwd").split() == ["0", "0"]
        assert inside(chain, "cat", "/proc/self/uid_map").split()[:2] != ["0", "0"]
        assert changes(carry_out(connection, operation)) == []
