"""Whether work would be lost: a container that is stopped takes its detached jobs along."""

from __future__ import annotations

from dflash.hosts.failures import HostError
from dflash.hosts.inventory import Host
from dflash.hosts.jobs import Job, list_jobs
from dflash.hosts.reach import reach
from dflash.provision.operation import Change
from dflash.provision.operations.incus import STOP

_STOPPING = {"stop", "reboot", "restart", "shutdown", "lxc-stop", STOP}


def ends_work(change: Change) -> bool:
    """Whether what runs in the container ends by a change of it."""
    return any(word in _STOPPING for action in change.actions for word in action.argv)


def running_jobs(host: Host) -> list[Job]:
    """The jobs that run at the end of the chain of `host`; none where it can not be reached, as one that is stopped."""
    try:
        with reach(host.chain) as connection:
            return [job for job in list_jobs(connection, host) if job.state == "running"]
    except HostError:
        return []
