"""What matters between several GPUs of one machine: the fabric, NVLink, peer access, the IOMMU; and what NCCL needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dflash.finding import Finding, Severity
from dflash.provision.checks.faults import fault
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.inside import OPENS, gpus_of
from dflash.provision.facts.links import FABRIC, IOMMU, NVLINKS, PEERS, TOPOLOGY
from dflash.provision.facts.nvidia import KERNEL_MODULE
from dflash.provision.facts.resources import DISKS, MEMLOCK

HOST: tuple[Fact[Any], ...] = (KERNEL_MODULE, TOPOLOGY, PEERS, NVLINKS, FABRIC, IOMMU)
INSIDE: tuple[Fact[Any], ...] = (MEMLOCK, DISKS, OPENS)

MIB, GIB = 2**20, 2**30
_SHM, _SHM_LITTLE = GIB, 128 * MIB


def judge(host: Facts, inside: Facts, want: Wanted) -> Iterator[Finding]:
    """Nothing where fewer than two GPUs are asked for or seen."""
    if max(want.gpus, len(gpus_of(inside[OPENS]))) < 2:
        return
    yield from fabric(host)
    yield from links(host)
    yield from locked(inside)
    yield from shared_memory(inside)


def fabric(host: Facts) -> Iterator[Finding]:
    """NVSwitches work once the fabric manager has set them up."""
    read, module = host[FABRIC], host[KERNEL_MODULE].version
    joining = [state for state in read.states if state not in ("Completed", "N/A")]
    joined = "Completed" in read.states and not joining  # a container sees the switches, and no service
    if read.switches and read.service not in ("active", "") and not joined:
        found = f"{read.switches} NVSwitches, and nvidia-fabricmanager is {read.service}"
        yield fault(
            "fabric-manager", "NVSwitch", found, "systemctl enable --now nvidia-fabricmanager; read its journal"
        )
    elif read.switches and read.version and module and read.version != module:
        found = f"the fabric manager is {read.version}, the kernel module {module}"
        yield fault("fabric-manager", "NVSwitch", found, f"install nvidia-fabricmanager {module}")
    elif joining:
        found = f"{len(joining)} GPUs have not joined: {joining[0]}"
        yield fault("fabric-manager", "NVSwitch", found, "restart nvidia-fabricmanager, and read its journal")
    elif read.switches:
        yield Finding("ok", "NVSwitch", f"{read.switches}, set up")


def links(host: Facts) -> Iterator[Finding]:
    """The ways between GPUs: NVLink where there is some; else PCIe, where bridges and the IOMMU can hinder."""
    nvlinks, topology = host[NVLINKS], host[TOPOLOGY]
    by_nvlink = {pair for pair, way in topology.items() if way.startswith("NV")}
    most = max((up for up, _ in nvlinks.values()), default=0)
    weak = [f"GPU {gpu}: {up} of {most}" for gpu, (up, down) in sorted(nvlinks.items()) if up < most]
    if weak:
        cure = "read dmesg for Xid 74; reset the GPUs together (nvidia-smi -r), else have the machine looked at"
        yield fault("nvlink-down", "NVLink", f"links that work: {', '.join(weak)}", cure)
    elif by_nvlink:
        yield Finding("ok", "NVLink", f"{most} links a GPU, {len(by_nvlink) // 2} of {len(topology) // 2} pairs")
    closed = {pair: said for pair, said in host[PEERS].items() if said != "OK" and pair[0] < pair[1]}
    if closed:
        pair, said = min(closed.items())
        found = f"{len(closed)} pairs have none, such as {pair[0]} and {pair[1]} ({said}); NCCL goes by way of the host"
        cure = "disable ACS and the IOMMU's translation (iommu=pt); in a virtual machine, ask for GPUs of one group"
        yield fault("no-peers", "peer access", found, cure, "warn")
    elif host[PEERS]:
        yield Finding("ok", "peer access", "each GPU reads each other's memory")
    over_pcie = len(by_nvlink) < len(topology)
    if over_pcie and host[IOMMU].acs:
        cure = "switch ACS off in the firmware, or by setpci on each bridge after each start"
        yield fault("acs", "PCIe", f"{host[IOMMU].acs} bridges have ACS on", cure, "warn")
    if over_pcie and host[IOMMU].translated:
        cure = "start the kernel with iommu=pt"
        yield fault("iommu", "PCIe", f"{host[IOMMU].translated} groups are translated", cure, "warn")


def locked(inside: Facts) -> Iterator[Finding]:
    """Memory that NCCL may pin."""
    limit = inside[MEMLOCK]
    if limit is None:
        yield Finding("ok", "locked memory", "unlimited")
    else:
        cure = (
            "set memlock unlimited (NCCL pins it, for InfiniBand): by `limits` in hosts.yaml, under `host` where pct "
            "or LXC enters without a login, and log in anew; docker: --ulimit memlock=-1; Incus: limits.kernel.memlock"
        )
        yield fault("memlock-small", "locked memory", f"ulimit -l is {limit // 1024:,} KiB", cure, "warn")


def shared_memory(inside: Facts) -> Iterator[Finding]:
    """NCCL's processes on one machine talk through /dev/shm."""
    place = next((each for each in inside[DISKS] if each.mount == "/dev/shm"), None)
    cure = "give the container 1 GiB and more (docker: --shm-size=8g; LXC: a tmpfs on /dev/shm), or free it"
    if not inside[DISKS]:
        return  # df said nothing
    if place is None:
        yield fault("small-shm", "shared memory", "/dev/shm is not a file system of its own", cure, "warn")
    elif place.free < _SHM:
        severity: Severity = "block" if place.free < _SHM_LITTLE else "warn"
        found = f"{place.free / MIB:,.0f} MiB free of {place.size / MIB:,.0f} in /dev/shm"
        yield fault("small-shm", "shared memory", found, cure, severity)
    else:
        yield Finding("ok", "shared memory", f"{place.free / GIB:.1f} GiB free in /dev/shm")
