"""A real Slurm on loopback: a controller and two nodes of four cores, which are this machine."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.lab.service import CGROUPS, alone, free_port, need, need_cgroup, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "unshare")

CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldLogFile={folder}/slurmctld.log
ProctrackType=proctrack/pgid
TaskPlugin=task/{tasks}
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters={shared}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
KillWait=30
SlurmdTimeout=20
InactiveLimit=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=4 RealMemory=2000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=4 RealMemory=2000
PartitionName=batch Nodes=n1,n2 Default=YES PriorityTier=1 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=n1,n2 PriorityTier=9 PreemptMode=OFF MaxTime=INFINITE State=UP
"""
"""`cred_expire` is also how long a requeued job waits at least (2 minutes where it is not said). `SlurmdTimeout` is how
long a node may not answer before it is down (5 minutes where it is not said)."""

CONSTRAINED = """\
CgroupPlugin=cgroup/v1
CgroupAutomount=no
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
"""
"""Where a job has the memory that it asked for, and no more."""

OF_ITS_OWN = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'
"""What a node does that has a folder of its own in the place of a shared one."""


@dataclass(frozen=True)
class Slurm:
    """A running Slurm; SLURM_CONF, which its programs read, is set meanwhile. `unshared` is a folder that the second
    node has another of; `nodes` are their slurmd, by name."""

    folder: Path
    unshared: Path
    nodes: dict[str, subprocess.Popen[bytes]]

    def ask(self, *command: str) -> str:
        """What one of Slurm's programs prints."""
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def queue(self) -> list[str]:
        """The jobs that wait or run."""
        return self.ask("squeue", "--noheader", "--format=%A").split()

    def state(self, node: str) -> str:
        """How Slurm sees a node."""
        return self.ask("sinfo", "--noheader", f"--nodes={node}", "--partition=batch", "--format=%T").strip()

    def cut_power(self, node: str) -> None:
        """The node with all that runs on it falls silent: as with a machine that is off, no connection is closed."""
        self._tell(node, signal.SIGSTOP)

    def boot(self, node: str) -> None:
        """Start a node anew: nothing of before runs on it."""
        self._tell(node, signal.SIGKILL)
        self.nodes[node].wait(10)
        self.start(node)

    def start(self, node: str) -> None:
        """Start the slurmd of a node."""
        apart = ["sh", "-c", OF_ITS_OWN, "sh", str(self.unshared)] if node == "n2" else []
        command = ["unshare", "--mount", *apart, "slurmd", "-D", "-N", node]
        with (self.folder / "said").open("ab") as said:
            self.nodes[node] = subprocess.Popen(command, stdout=said, stderr=said)

    def stop(self) -> None:
        """End the slurmd of all nodes, silent ones too; one that a test has ended may be gone."""
        for node, process in self.nodes.items():
            if process.poll() is None:
                self._tell(node, signal.SIGCONT)
            _end(process)

    def _tell(self, node: str, number: int) -> None:
        """Send a signal to all that runs on a node, so in its mount namespace."""
        mounts = _mounts(self.nodes[node].pid)
        for pid in psutil.pids():
            with contextlib.suppress(OSError):
                if _mounts(pid) == mounts:
                    os.kill(pid, number)


def _mounts(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/mnt")


@contextlib.contextmanager
def slurm(*, constrained: bool = False) -> Iterator[Slurm]:
    """Start munged, slurmctld and two slurmd, each in a folder of its own; all are gone afterwards. A constrained one
    ends a task that takes more memory than its job asked for."""
    need(PROGRAMS, ["slurm-wlm", "munge"])
    if constrained:
        need_cgroup("memory")
    with alone(), tempfile.TemporaryDirectory(prefix="dflash-slurm-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        for each in ("munge", "state", "unshared"):
            (folder / each).mkdir()
        for each in (folder, folder / "munge"):
            each.chmod(0o755)  # munged wants its socket to be for all
        ports = {"controller": free_port(), "first": free_port(), "second": free_port()}
        configuration = folder / "slurm.conf"
        kinds = {"tasks": "cgroup" if constrained else "none", "shared": "CR_Core_Memory" if constrained else "CR_Core"}
        configuration.write_text(CONFIGURATION.format(host=platform.node(), folder=folder, **ports, **kinds))
        if constrained:
            (folder / "cgroup.conf").write_text(CONSTRAINED)
        running = Slurm(folder, folder / "unshared", {})
        environment = {**os.environ, "SLURM_CONF": str(configuration)}

        def start(*command: str) -> None:
            with (folder / "said").open("ab") as said:
                process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
            stack.callback(_end, process)

        (folder / "munge" / "key").write_bytes(secrets.token_bytes(128))
        (folder / "munge" / "key").chmod(0o600)
        start("munged", "--foreground", *(f"--{option}={folder}/munge/{file}" for option, file in _MUNGED.items()))
        wait_until((folder / "munge" / "socket").exists, "munged")
        start("slurmctld", "-D", "-c")
        before = os.environ.get("SLURM_CONF")
        os.environ["SLURM_CONF"] = str(configuration)
        stack.callback(_forget_cgroups)
        stack.callback(running.stop)
        for node in ("n1", "n2"):
            running.start(node)
        try:
            wait_until(_nodes_are_idle, "slurm")
            yield running
            assert running.queue() == []
        finally:
            running.ask("scancel", "--me")
            wait_until(lambda: not running.queue(), "an empty queue", 60)
            os.environ.pop("SLURM_CONF") if before is None else os.environ.update(SLURM_CONF=before)


def freeze(pid: int, seconds: float = 240) -> None:
    """Have a process do nothing at all, whatever it is told, until somebody kills it."""
    group = CGROUPS / "freezer" / f"dflash-lab-{pid}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        wait_until(lambda: _is_killed(pid), f"the end of {pid}", seconds)
    finally:
        (group / "freezer.state").write_text("THAWED")
        wait_until(lambda: not (group / "cgroup.procs").read_text(), f"the end of {pid}")
        group.rmdir()


def _is_killed(pid: int) -> bool:
    """Whether SIGKILL waits for a process, which is not thawed for it."""
    waiting = re.findall(r"^S(?:ig|hd)Pnd:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in waiting)


_MUNGED = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def _forget_cgroups() -> None:
    for group in sorted(CGROUPS.glob("memory/slurm_n[12]/**/"), reverse=True):
        group.rmdir()


def _nodes_are_idle() -> bool:
    done = subprocess.run(["sinfo", "--noheader", "-N", "-p", "batch", "-o", "%N %t"], capture_output=True, text=True)
    return done.stdout.split("\n")[:2] == ["n1 idle", "n2 idle"]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(10)
