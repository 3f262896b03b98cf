"""Layer 3, the devices: nodes with the numbers that the kernel gives them now, and how each GPU is set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dflash.finding import Finding
from dflash.provision.checks.faults import fault
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.gpus import GPUS, PROCESSES, Gpu
from dflash.provision.facts.nodes import MAJORS, NODES
from dflash.provision.facts.nvidia import KERNEL_MODULE

HOST: tuple[Fact[Any], ...] = (KERNEL_MODULE, NODES, MAJORS, GPUS, PROCESSES)
INSIDE: tuple[Fact[Any], ...] = ()

NVIDIA = 195
"""The one major number that is NVIDIA's own for good; the others are given anew with each load."""
_MAKE = "nvidia-modprobe -c0 -u"


def judge(host: Facts, inside: Facts, want: Wanted) -> Iterator[Finding]:
    """Nothing where no kernel module runs: layer 2 has said why."""
    if host[KERNEL_MODULE].version is None:
        return
    yield from nodes(host)
    yield from settings(host[GPUS].gpus)
    busy = host[PROCESSES]
    if busy:
        named = ", ".join(f"{each.name} ({each.pid})" for each in busy[:3])
        more = f" and {len(busy) - 3} more" if len(busy) > 3 else ""
        yield fault("gpus-busy", "GPU processes", f"{named}{more}", "wait for them, or stop them", "warn")


def nodes(host: Facts) -> Iterator[Finding]:
    """The nodes that every CUDA program opens, against /proc/devices."""
    there, majors = host[NODES], host[MAJORS]
    gpus = [path for path in there if path.removeprefix("/dev/nvidia").isdigit()]
    absent = [path for path in ("/dev/nvidiactl", "/dev/nvidia-uvm") if path not in there]
    if not gpus:
        absent.insert(0, "/dev/nvidia0")
    for path in absent:
        cure = f"as root: {_MAKE}; before each start of a container, from a unit of systemd's"
        yield fault("no-node", path, "is not there", cure)
    right = {
        **dict.fromkeys((*gpus, "/dev/nvidiactl", "/dev/nvidia-modeset"), NVIDIA),
        **dict.fromkeys(("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"), majors.get("nvidia-uvm")),
    }
    stale = {path: major for path, major in right.items() if path in there and there[path].major != major}
    for path, major in stale.items():
        kernel = f"the kernel gives {major}" if major else "the kernel has no such device: nvidia-uvm is not loaded"
        cure = f"rm {path}, then {_MAKE}; containers that have the old number must be given the new one"
        yield fault("stale-node", path, f"has major {there[path].major}, {kernel}", cure)
    if not absent and not stale:
        yield Finding("ok", "device nodes", f"{len(gpus)} GPUs, nvidia-uvm has major {majors.get('nvidia-uvm')}")


def settings(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Persistence, MIG, ECC, compute mode."""

    def named(which: list[Gpu]) -> str:
        return "GPU " + ", ".join(str(each.index) for each in which)

    wrong = False
    if asleep := [each for each in gpus if each.persistence is False]:
        wrong = True
        cure = "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1 after each start"
        yield fault("no-persistence", "persistence", f"off on {named(asleep)}", cure, "warn")
    if cut := [each for each in gpus if each.mig]:
        wrong = True
        cure = "nvidia-smi -mig 0 with nothing on them, then reset or reboot"
        yield fault("mig-on", "MIG", f"on, on {named(cut)}", cure)
    if bare := [each for each in gpus if each.ecc is False]:
        wrong = True
        yield fault("ecc-off", "ECC", f"off on {named(bare)}", "nvidia-smi -e 1, then reboot", "warn")
    if failing := [each for each in gpus if each.uncorrected]:
        wrong = True
        counts = ", ".join(f"GPU {each.index}: {each.uncorrected}" for each in failing)
        cure = "reset the GPU with nothing on it (nvidia-smi --gpu-reset -i INDEX); if it comes back, replace the card"
        yield fault("ecc-errors", "ECC", f"uncorrected errors since the driver was loaded: {counts}", cure, "warn")
    if shut := [each for each in gpus if each.mode.startswith(("Exclusive", "Prohibited"))]:
        wrong = True
        found = f"{shut[0].mode} on {named(shut)}"
        yield fault("exclusive", "compute mode", found, "nvidia-smi -c DEFAULT", "warn")
    if gpus and not wrong:
        yield Finding("ok", "GPU settings", "persistence on, MIG off, no ECC error")
