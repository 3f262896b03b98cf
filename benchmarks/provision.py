"""`./inv bench provision`: provisioning a host on which nothing is left to do, next to what people use instead, on the
same machine, in the same run.

The host is a bare Debian in an LXC container, which our own provisioning makes what all tools declare: packages, those
of a Python with venv and headers too, a user, directories, limits, and uv. An sshd in it lets everybody in as root.
Each tool is a process of its own, from its start to its end. Medians, in seconds.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.tools import ANSIBLE, PYINFRA, _installed, _quietly
from dflash.environments.wheelhouse import fill
from dflash.hosts.chain import parse_chain
from dflash.hosts.inventory import Host
from dflash.hosts.reach import reach
from dflash.pipeline.events import read_jsonl
from dflash.provision.applying import provision
from dflash.provision.declaration import MachineSpec
from dflash.provision.operations.limits import FILE, Limits
from tests.lab.lxc import container
from tests.lab.service import free_port, wait_until
from tests.lab.sshd import Sshd, _answers, _end, sshd

CONTAINER, HOST = "dflash-bench", "lab-provisioned"
ROUNDS = 5
PACKAGES = ["openssh-server", "python3-apt", "git", "g++"]  # Ansible needs python3-apt, training g++
USER, GROUPS = "trainer", ["video", "render"]
DIRECTORIES = ["/srv/models", "/srv/vault", "/srv/data"]
LIMITS: dict[str, int | str] = {"memlock": "unlimited", "nofile": 1048576}
INSIDE: dict[str, object] = {"packages": PACKAGES, "user": USER, "groups": GROUPS, "directories": DIRECTORIES}
LOGIN = {**INSIDE, "limits": LIMITS}  # limits are of logins, and nobody logs in through lxc-attach

# What ours does besides, as the other tools are told it.
PYTHON = ["python3.11", "python3.11-venv", "libpython3.11-dev"]
ROOT = "/srv/dflash"
UV = Path(sys.prefix) / "bin" / "uv"
UV_THERE = f"{ROOT}/tools/uv-{importlib.metadata.version('uv')}/uv"

BEGIN = """\
name: begin
steps:
  - name: check
    uses: check
    with: {min_disk_gib: 0.5, min_memory_gib: 0.5, compile_test: false}
"""
"""A pipeline whose runner has hardly anything to do."""

REPOSITORY = Path(__file__).parents[1]
# `./inv` with an inventory of its own, which is otherwise beside the package.
INV = """
import sys
from pathlib import Path
from dflash import cli
cli.HOME = Path(sys.argv[1])
cli.main(sys.argv[2:])
"""


def measure() -> dict[str, float]:
    """`bare_s`: a bare Debian without Python becomes the host, over ssh/lxc, packages fetched; then nothing to do:
    `provision_lxc_s` over ssh/lxc, `check_lxc_s` for a check of it, and `train_lxc_s` from the command of a run to the
    start of its runner there, with nothing to send; `provision_s` over ssh, and `pyinfra_s`, `ansible_s`,
    `ansible_no_facts_s` the same."""
    ansible, pyinfra = _installed(*ANSIBLE), _installed(*PYINFRA)
    with sshd() as server, container(CONTAINER, bare=True), tempfile.TemporaryDirectory() as folder:
        chain = f"ssh:lab/lxc:{CONTAINER}"
        begun = time.perf_counter()
        provision(Host(CONTAINER, parse_chain(chain), root=ROOT), MachineSpec.model_validate(INSIDE))
        figures = {"bare_s": round(time.perf_counter() - begun, 1)}
        with _sshd_inside(server):
            figures["provision_lxc_s"] = _ours(Path(folder), chain, INSIDE)
            figures["check_lxc_s"] = _checked(Path(folder))
            figures["train_lxc_s"] = _begun(Path(folder), chain)
            over_ssh = Host(CONTAINER, parse_chain(f"ssh:{HOST}"), root=ROOT)
            provision(over_ssh, MachineSpec.model_validate(LOGIN))
            figures["provision_s"] = _ours(Path(folder), str(over_ssh.chain), LOGIN)
            if pyinfra:
                figures["pyinfra_s"] = _pyinfra(server, pyinfra, Path(folder))
            if ansible:
                figures["ansible_s"] = _ansible(server, ansible, Path(folder), facts=True)
                figures["ansible_no_facts_s"] = _ansible(server, ansible, Path(folder), facts=False)
    for name in ("pyinfra", "ansible", "ansible_no_facts"):
        if f"{name}_s" in figures:
            figures[f"times_faster_than_{name}"] = round(figures[f"{name}_s"] / figures["provision_s"], 1)
    return figures


@contextlib.contextmanager
def _sshd_inside(server: Sshd) -> Iterator[None]:
    """An sshd in the container, on a port of this machine, whose network that has."""
    port = free_port()
    root = Path("/var/lib/lxc") / CONTAINER / "rootfs"
    (root / "run" / "sshd").mkdir(exist_ok=True)
    (root / "root" / "authorized").write_text(server.key.with_suffix(".pub").read_text())
    options = {"Port": port, "ListenAddress": "127.0.0.1", "AuthorizedKeysFile": "/root/authorized", "UsePAM": "no"}
    words = [word for name, value in {**options, "StrictModes": "no"}.items() for word in ("-o", f"{name}={value}")]
    config = server.home / ".ssh" / "config"
    config.write_text(
        config.read_text()
        + f"Host {HOST}\n  HostName 127.0.0.1\n  Port {port}\n  User root\n  IdentityFile {server.key}\n"
    )
    with (server.home / "log").open("wb") as log:
        process = subprocess.Popen(["lxc-attach", "-n", CONTAINER, "--", "/usr/sbin/sshd", "-D", *words], stderr=log)
    try:
        wait_until(lambda: _answers("127.0.0.1", port), "the container's sshd")
        reach(parse_chain(f"ssh:{HOST}")).close()  # writes the host key down, for every tool
        yield
    finally:
        _end(process)


def _ours(folder: Path, chain: str, machine: dict[str, object]) -> float:
    entry = {"chain": chain, "root": ROOT, "machine": machine}
    (folder / "hosts.yaml").write_text(json.dumps({"bench": entry}))
    words = [sys.executable, "-B", "-c", INV, str(folder), "provision", "--host", "bench", "--json"]

    def run() -> None:
        path = {"PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(words, capture_output=True, env={**os.environ, **path}, cwd=REPOSITORY, check=False)
        if done.returncode or json.loads(done.stdout)["hosts"][0]["changes"]:
            raise RuntimeError(f"there was something left to do: {done.stdout.decode()} {done.stderr.decode()}")

    return _median(run)


def _checked(folder: Path) -> float:
    """A check of the host that `_ours` wrote down last."""
    words = [sys.executable, "-B", "-c", INV, str(folder), "check", "--host", "bench", "--json"]

    def run() -> None:
        path = {"PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(words, capture_output=True, env={**os.environ, **path}, cwd=REPOSITORY, check=False)
        if done.returncode not in (0, 1) or not json.loads(done.stdout)["hosts"]:  # 1: it has no compiler
            raise RuntimeError(f"the check failed: {done.stderr.decode()}")

    return _median(run)


def _begun(folder: Path, chain: str) -> float:
    wheels, root = folder / "wheels", folder / "runs-here"
    fill(REPOSITORY / "envs" / "local", wheels)
    (folder / "begin.yaml").write_text(BEGIN)
    words = [sys.executable, "-B", "-m", "dflash", "train", "--pipeline", str(folder / "begin.yaml"), "--host", chain]

    def run() -> float:
        begun = time.time()
        _quietly([*words, "--root", str(root), "--wheels", str(wheels)])
        newest = max((root / "runs").iterdir())
        return float(read_jsonl(newest / "events.jsonl")[0]["time"]) - begun

    run()  # makes the environment, sends the source
    return round(statistics.median(run() for _ in range(ROUNDS)), 2)


def _pyinfra(server: Sshd, programs: Path, folder: Path) -> float:
    data = {"ssh_config_file": str(server.home / ".ssh" / "config"), "ssh_known_hosts_file": str(server.known_hosts)}
    (folder / "inventory.py").write_text(f"hosts = [({HOST!r}, {data!r})]\n")
    (folder / "limits.conf").write_text(_limits())
    (folder / "deploy.py").write_text(
        "from pyinfra.operations import apt, files, server\n"
        f"apt.packages(packages={PACKAGES + PYTHON!r})\n"
        f"server.user(user={USER!r}, groups={GROUPS!r}, shell='/bin/bash')\n"
        f"files.put(src='limits.conf', dest={FILE!r})\n"
        f"for path in {[*DIRECTORIES, ROOT]!r}:\n    files.directory(path=path, user={USER!r})\n"
        f"files.put(src={str(UV)!r}, dest={UV_THERE!r}, mode='755')\n"
    )
    return _median(lambda: _quietly([str(programs / "pyinfra"), "-y", "inventory.py", "deploy.py"], folder))


def _ansible(server: Sshd, programs: Path, folder: Path, *, facts: bool) -> float:
    """With pipelining and ControlPersist, whose master lives on from one round to the next."""
    control = folder / "ansible"
    known = ("-F", str(server.home / ".ssh" / "config"), "-o", f"UserKnownHostsFile={server.known_hosts}")
    options = shlex.join([*known, "-o", "ControlMaster=auto", "-o", "ControlPersist=60s"])
    (folder / "ansible.cfg").write_text(
        f"[ssh_connection]\npipelining = true\ncontrol_path = {control}\nssh_args = {options}\n"
    )
    tasks = [
        {"ansible.builtin.apt": {"name": PACKAGES + PYTHON}},
        {"ansible.builtin.user": {"name": USER, "groups": GROUPS, "append": True, "shell": "/bin/bash"}},
        {"ansible.builtin.copy": {"content": _limits(), "dest": FILE}},
        {
            "ansible.builtin.file": {"path": "{{ item }}", "state": "directory", "owner": USER},
            "loop": [*DIRECTORIES, ROOT],
        },
        {"ansible.builtin.copy": {"src": str(UV), "dest": UV_THERE, "mode": "0755"}},
    ]
    (folder / "play.yaml").write_text(json.dumps([{"hosts": "all", "gather_facts": facts, "tasks": tasks}]))
    try:
        return _median(
            lambda: _quietly([str(programs / "ansible-playbook"), "-i", f"{HOST},", "play.yaml"], folder), rounds=3
        )
    finally:
        exit_master = ["ssh", *known, "-o", f"ControlPath={control}", "-O", "exit", "-q", HOST]
        subprocess.run(exit_master, check=False, capture_output=True)


def _limits() -> str:
    return Limits(LIMITS).text()


def _median(run: Callable[[], None], rounds: int = ROUNDS) -> float:
    """Seconds; a first run, which is not counted, compiles what is imported and opens what stays open."""
    run()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return round(statistics.median(times), 2)
