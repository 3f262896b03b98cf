"""Layer 2, the machine with the kernel: system, clock, the GPUs on the bus, one driver in kernel and user space."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dflash.finding import Finding, Severity
from dflash.provision.checks import xids
from dflash.provision.checks.faults import fault
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.clock import CLOCK
from dflash.provision.facts.gpus import GPUS
from dflash.provision.facts.kernellog import KERNEL_LOG
from dflash.provision.facts.nodes import NODES
from dflash.provision.facts.nvidia import DKMS, KERNEL_MODULE, LIBRARIES, MODULE_ON_DISK, PCI_GPUS, numbers
from dflash.provision.facts.system import DISTRIBUTION, KERNEL

HOST: tuple[Fact[Any], ...] = (
    KERNEL,
    DISTRIBUTION,
    CLOCK,
    PCI_GPUS,
    KERNEL_MODULE,
    MODULE_ON_DISK,
    LIBRARIES,
    DKMS,
    NODES,
    GPUS,
    KERNEL_LOG,
)
INSIDE: tuple[Fact[Any], ...] = ()

_OFF_S, _FAR_OFF_S = 5.0, 300.0
_PASSED_ON = "vfio-pci"
_RELOAD = "stop what uses the GPUs; modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia, modprobe nvidia; or reboot"


def judge(host: Facts, inside: Facts, want: Wanted) -> Iterator[Finding]:
    """The system; then, where there are GPUs or should be, the driver from the bus upwards."""
    yield Finding("ok", "system", f"{host[DISTRIBUTION].name or 'unknown'}, kernel {host[KERNEL].release}")
    yield from clock(host, want)
    if not (want.gpus or host[PCI_GPUS] or host[KERNEL_MODULE].version):
        yield Finding("ok", "GPUs", "none, and none is asked for")
        return
    yield from bus(host, want)
    if host[KERNEL_MODULE].version is None:
        if want.gpus or any(each.driver != _PASSED_ON for each in host[PCI_GPUS]):
            yield no_module(host, "block" if want.gpus else "warn")
        return
    yield from driver(host, want)
    yield from smi(host, want)
    yield from xids.judge(host[KERNEL_LOG], host[GPUS])


def clock(host: Facts, want: Wanted) -> Iterator[Finding]:
    """Compared with this machine's."""
    read = host[CLOCK]
    off = read.now - want.now if read.now is not None and want.now is not None else 0.0
    if abs(off) > _OFF_S:
        found = f"{abs(off):,.0f} s {'ahead of' if off > 0 else 'behind'} this machine's"
        cure = "set it by NTP there (timedatectl set-ntp true, or chrony), and look at this machine's, too"
        yield fault("clock-off", "clock", found, cure, "block" if abs(off) > _FAR_OFF_S else "warn")
    elif read.synchronized is False:
        yield fault("clock-free", "clock", "is not kept by NTP", "timedatectl set-ntp true, or install chrony", "warn")
    else:
        yield Finding("ok", "clock", "kept by NTP" if read.synchronized else "right")


def bus(host: Facts, want: Wanted) -> Iterator[Finding]:
    """The GPUs on the bus, and which driver of the kernel holds each: another than NVIDIA's is wrong where too few are
    left."""
    there = host[PCI_GPUS]
    left = [each for each in there if each.driver not in (_PASSED_ON, "nouveau")]
    for driver_name, name, cure in (
        (
            _PASSED_ON,
            "gpu-passed-on",
            "take it from the virtual machine, and from vfio-pci (modprobe.d, kernel line)",
        ),
        ("nouveau", "nouveau", "blacklist nouveau in /etc/modprobe.d, make the initramfs anew, and reboot"),
    ):
        held = [each.address for each in there if each.driver == driver_name]
        if held and len(left) < want.gpus:
            yield fault(name, "GPUs on the bus", f"{driver_name} holds {', '.join(held)}", cure)
        elif held:
            yield Finding("ok", "GPUs on the bus", f"{driver_name} holds {', '.join(held)}, which nobody asks for")
    if there and len(there) < want.gpus:
        found = f"{len(there)}; the inventory says {want.gpus}"
        cure = "look whether a card is seated and powered (lspci -d 10de:), or correct gpus: in hosts.yaml"
        yield fault("too-few-gpus", "GPUs on the bus", found, cure)


def no_module(host: Facts, severity: Severity) -> Finding:
    """Why no kernel module runs."""
    kernel, built = host[KERNEL].release, host[DKMS]
    if built and not any(each.kernel == kernel and each.state.startswith("installed") for each in built):
        states = "; ".join(f"{each.version} for {each.kernel or 'no kernel'}: {each.state}" for each in built)
        cure = f"install the headers of {kernel}, then dkms autoinstall and modprobe nvidia"
        found = f"DKMS has none for kernel {kernel} ({states})"
        return fault("dkms-not-built", "NVIDIA driver", found, cure, severity)
    if host[MODULE_ON_DISK]:
        found = f"{host[MODULE_ON_DISK]} is installed for kernel {kernel}, and not loaded"
        cure = "modprobe nvidia, and read dmesg if it fails"
        return fault("module-not-loaded", "NVIDIA driver", found, cure, severity)
    cure = "install NVIDIA's driver on the machine that has the kernel, not in the container"
    return fault("no-driver", "NVIDIA driver", f"there is no kernel module for {kernel}", cure, severity)


def driver(host: Facts, want: Wanted) -> Iterator[Finding]:
    """The running module, the one on disk, and the libraries: one version."""
    module, on_disk, libraries = host[KERNEL_MODULE].version, host[MODULE_ON_DISK], host[LIBRARIES]
    assert module is not None
    found = {version for versions in libraries.values() for version in versions}
    first = {versions[0] for versions in libraries.values()}
    if first - {module}:
        text = f"the kernel module is {module}, the libraries are {', '.join(sorted(first - {module}))}"
        yield fault("driver-mismatch", "NVIDIA driver", text, _RELOAD)
    elif not libraries and host[GPUS].missing:  # LD_LIBRARY_PATH may lead to what ldconfig does not know
        cure = "install the driver's user space of the same version (nvidia-smi, libnvidia-ml, libcuda)"
        severity: Severity = "warn" if want.container else "block"
        yield fault("no-user-space", "NVIDIA driver", f"{module} without its libraries", cure, severity)
    elif len(found) > 1:
        cure = "remove what the one installer left (nvidia-uninstall, or the packages), then ldconfig"
        yield fault("two-drivers", "NVIDIA driver", f"libraries of {', '.join(sorted(found))}", cure, "warn")
    elif want.min_driver and numbers(module) < numbers(want.min_driver):
        cure = f"install {want.min_driver} or newer, or use an environment for an older CUDA"
        yield fault("driver-too-old", "NVIDIA driver", f"{module}; {want.min_driver} is needed", cure)
    else:
        yield Finding("ok", "NVIDIA driver", f"{module}{', open module' if host[KERNEL_MODULE].open else ''}")
    if on_disk and on_disk != module and not first - {module}:
        text = f"{module} runs, {on_disk} is installed"
        yield fault("module-outdated", "NVIDIA module", text, "the next reboot changes it: plan one", "warn")


def smi(host: Facts, want: Wanted) -> Iterator[Finding]:
    """What nvidia-smi says of them."""
    read = host[GPUS]
    # A container sees the whole bus, and has the nodes of those that it was given.
    nodes = [path for path in host[NODES] if path.removeprefix("/dev/nvidia").isdigit()]
    bus = [each for each in host[PCI_GPUS] if each.driver == "nvidia"]
    there = min(len(bus), len(nodes)) if nodes else len(bus)
    lost = [each for each in read.gpus if each.problem]
    if read.hung:
        cure = "read dmesg, and look for processes in state D (ps -eo pid,stat,args); most often only a reboot helps"
        yield fault("smi-hangs", "nvidia-smi", read.error, cure)
    elif "version mismatch" in read.error:
        if not {v[0] for v in host[LIBRARIES].values()} - {host[KERNEL_MODULE].version}:  # else it has been said
            yield fault("driver-mismatch", "nvidia-smi", read.error, _RELOAD)
    elif "is lost" in read.error or "device handle" in read.error:
        yield fault("gpu-lost", "GPUs", read.error, "reboot; if it comes back, look at power and seating of the card")
    elif read.error and not read.missing:
        yield fault("smi-fails", "nvidia-smi", read.error, "read dmesg for NVRM; load the driver anew or reboot")
    elif lost:
        text = "; ".join(f"GPU {each.index} at {each.address}: {each.problem}" for each in lost)
        yield fault("gpu-lost", "GPUs", text, "nvidia-smi --gpu-reset -i INDEX with nothing on it, or reboot")
    elif read.gpus and len(read.gpus) < there:
        text = f"{len(read.gpus)} answer, {there} are there"
        yield fault("gpu-lost", "GPUs", text, "read dmesg for Xid and RmInit; reboot, then look at power and seating")
    elif read.gpus and len(read.gpus) < want.gpus:
        text = f"{len(read.gpus)}; the inventory says {want.gpus}"
        yield fault("too-few-gpus", "GPUs", text, "correct gpus: in hosts.yaml, or look why the others are gone")
    elif read.gpus:
        models = sorted({each.name for each in read.gpus})
        memory = min(each.memory or 0 for each in read.gpus) / 1024
        yield Finding("ok", "GPUs", f"{len(read.gpus)} x {', '.join(models)}, {memory:.0f} GiB")
