"""A real Slurm on loopback: a controller and two nodes of four cores, which are this machine."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lab.service import alone, free_port, need, wait_until

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
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
KillWait=30
InactiveLimit=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=4
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=4
PartitionName=batch Nodes=n1,n2 Default=YES PriorityTier=1 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=n1,n2 PriorityTier=9 PreemptMode=OFF MaxTime=INFINITE State=UP
"""
"""`cred_expire` is also how long a requeued job waits at least (2 minutes where it is not said)."""

OF_ITS_OWN = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'
"""What a node does that has a folder of its own in the place of a shared one."""


@dataclass(frozen=True)
class Slurm:
    """A running Slurm; SLURM_CONF, which its programs read, is set meanwhile. `unshared` is a folder that the second
    node has another of."""

    folder: Path
    unshared: Path

    def ask(self, *command: str) -> str:
        """What one of Slurm's programs prints."""
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def queue(self) -> list[str]:
        """The jobs that wait or run."""
        return self.ask("squeue", "--noheader", "--format=%A").split()


@contextlib.contextmanager
def slurm() -> Iterator[Slurm]:
    """Start munged, slurmctld and two slurmd, each in a folder of its own; all are gone afterwards."""
    need(PROGRAMS, ["slurm-wlm", "munge"])
    with alone(), tempfile.TemporaryDirectory(prefix="dflash-slurm-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        for each in ("munge", "state", "unshared"):
            (folder / each).mkdir()
        for each in (folder, folder / "munge"):
            each.chmod(0o755)  # munged wants its socket to be for all
        ports = {"controller": free_port(), "first": free_port(), "second": free_port()}
        configuration = folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(host=platform.node(), folder=folder, **ports))
        running = Slurm(folder, folder / "unshared")
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
        start("slurmd", "-D", "-N", "n1")
        start("unshare", "--mount", "sh", "-c", OF_ITS_OWN, "sh", str(running.unshared), "slurmd", "-D", "-N", "n2")
        before = os.environ.get("SLURM_CONF")
        os.environ["SLURM_CONF"] = str(configuration)
        try:
            wait_until(_nodes_are_idle, "slurm")
            yield running
            assert running.queue() == []
        finally:
            running.ask("scancel", "--me")
            wait_until(lambda: not running.queue(), "an empty queue", 60)
            os.environ.pop("SLURM_CONF") if before is None else os.environ.update(SLURM_CONF=before)


_MUNGED = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def _nodes_are_idle() -> bool:
    done = subprocess.run(["sinfo", "--noheader", "-N", "-p", "batch", "-o", "%N %t"], capture_output=True, text=True)
    return done.stdout.split("\n")[:2] == ["n1 idle", "n2 idle"]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(10)
