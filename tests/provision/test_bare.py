"""A bare Debian becomes a host that environments can be made on: a real container behind a real sshd, and Docker's."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash.hosts.chain import parse_chain
from dflash.hosts.failures import NoPython
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.provision.applying import Provisioned, provision
from dflash.provision.container import ContainerSpec
from dflash.provision.declaration import MachineSpec
from dflash.provision.failures import ActionFailed
from dflash.provision.operation import Change, Kept
from dflash.provision.planning import Declared
from tests.lab.bare import make_bare
from tests.lab.docker import docker_container
from tests.lab.lxc import free_name, root_file_system
from tests.lab.sshd import Sshd, sshd, user_of

pytestmark = pytest.mark.nightly

SPEC = MachineSpec(
    packages=["less"],
    user="trainer",
    groups=["video", "render"],
    directories=["/srv/models"],
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Sshd]:
    with sshd() as server:
        yield server


def kinds(done: list[Provisioned]) -> dict[str, type]:
    return {step.outcome.subject: type(step.outcome) for each in done for step in each.steps}


def is_made_whole(host: Host, spec: MachineSpec, *, bare: bool) -> None:
    """Preview, provision, and provision again, which has nothing to do; then use what is there."""
    if bare:
        preview = provision(host, spec, preview=True)
        assert kinds(preview).pop("python3") is Change
        assert set(kinds(preview).values()) == {Change, Declared}
        with pytest.raises(NoPython):
            reach(host.chain)

    first = provision(host, spec)
    changed = {subject for subject, kind in kinds(first).items() if kind is Change}
    assert {"python3", "packages", "user trainer", "Python >=3.11,<3.13", "directory /srv/models"} <= changed
    second = provision(host, spec)
    assert set(kinds(second).values()) == {Kept}

    with reach(host.chain) as there:
        assert there.run(["less", "--version"]).code == 0
        assert there.run(["id", "-nG", "trainer"]).stdout == b"trainer video render\n"
        assert there.run(["stat", "-c", "%U", "/srv/models"]).stdout == b"trainer\n"
        assert there.run(["python3.11", "-m", "venv", "/tmp/venv"]).code == 0
        assert there.run(["test", "-e", "/usr/include/python3.11/Python.h"]).code == 0
        (uv,) = [step.outcome for step in second[-1].steps if step.name == "uv"]
        assert isinstance(uv, Kept)
        assert there.run([uv.why.removeprefix("it is at "), "--version"]).code == 0


def test_an_lxc_container_behind_ssh_that_is_made_first(lab: Sshd, tmp_path: Path):
    raw = ("lxc.apparmor.profile = unconfined", "lxc.init.cmd = /usr/bin/sleep infinity")
    made = ContainerSpec(image=str(bare_tar(tmp_path)), privileged=True, memory_gib=2, autostart=False, raw=raw)
    spec = SPEC.model_copy(update={"container": made})
    name = "dflash-bare"
    with free_name(name):
        host = Host("bare", parse_chain(f"ssh:lab/lxc:{name}"), root="/srv/dflash")
        told: list[str] = []
        before, behind = provision(host, spec, preview=True, tell=told.append)
        assert kinds([before]) == {f"{what} of lxc:{name}": Change for what in ("configuration", "state")} | {
            f"container lxc:{name}": Change
        }
        assert set(kinds([behind]).values()) == {Declared}
        assert f"{host.chain}: the container is made first" in told
        is_made_whole(host, spec, bare=False)


def bare_tar(folder: Path) -> Path:
    """A tar of Debian without Python."""
    root, tar = folder / "rootfs", folder / "rootfs.tar"
    root.mkdir()
    subprocess.run(["tar", "-xf", str(root_file_system()), "-C", str(root)], check=True)
    make_bare(root)
    subprocess.run(["tar", "--numeric-owner", "-cf", str(tar), "-C", str(root), "."], check=True)
    shutil.rmtree(root)
    return tar


def test_a_docker_container():
    with docker_container(bare=True) as name:
        is_made_whole(Host("bare", parse_chain(f"docker:{name}"), root="/srv/dflash"), SPEC, bare=True)


@pytest.fixture
def roots() -> Iterator[Path]:
    """A folder of root's that everybody may look into."""
    with tempfile.TemporaryDirectory(prefix="dflash-bare-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_who_may_use_sudo_provisions_and_owns_what_is_made(lab: Sshd, roots: Path):
    host = Host("mine", parse_chain("ssh:lab-bash"), root=str(roots / "root"))
    assert provision(host, MachineSpec(), only=["directories"])[0].changes == 2
    assert {place.owner() for place in (roots / "root", roots / "root" / "tools")} == {user_of("bash")}
    assert provision(host, MachineSpec(), only=["directories"])[0].changes == 0


def test_who_may_not_use_sudo_is_told_so_before_anything_is_done(lab: Sshd):
    host = Host("theirs", parse_chain("ssh:lab-bash/sudo:nobody"), root="/srv/not-there")
    with pytest.raises(ActionFailed, match="directory /srv/not-there: this needs root, and sudo"):
        provision(host, MachineSpec(), only=["directories"])


def test_who_may_not_use_sudo_has_what_lies_in_a_folder_of_their_own(lab: Sshd, roots: Path):
    shutil.chown(roots, "nobody")
    host = Host("theirs", parse_chain("ssh:lab-bash/sudo:nobody"), root=str(roots / "a" / "root"))
    assert provision(host, MachineSpec(), only=["directories", "uv"])[0].changes == 3
    assert {place.owner() for place in roots.rglob("*")} == {"nobody"}
    assert provision(host, MachineSpec(), only=["directories", "uv"])[0].changes == 0
