"""The NVIDIA driver of a machine: its kernel module, running and on disk, and its libraries."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dflash.provision.fact import Fact, Output

_VERSION = r"\d+\.\d+(?:\.\d+)?"


def numbers(version: str) -> tuple[int, ...]:
    """A driver's version as what it is compared by: 570.86.15 is older than 570.133.20."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


@dataclass(frozen=True)
class KernelModule:
    """The version of the module that runs, None where none is loaded; `open` is NVIDIA's open kernel module."""

    version: str | None
    open: bool = False


def _kernel_module(output: Output) -> KernelModule:
    # A line that is the version alone, and one in which it stands: either file can be missing in a container.
    found = re.search(rf"^(?:NVRM version:.*?\s)?({_VERSION})(?:\s.*)?$", output.stdout, re.MULTILINE)
    return KernelModule(found[1] if found else None, "Open Kernel Module" in output.stdout)


KERNEL_MODULE = Fact(
    "nvidia module", ("sh", "-c", "cat /sys/module/nvidia/version /proc/driver/nvidia/version"), _kernel_module
)


def _module_on_disk(output: Output) -> str | None:
    found = re.search(rf"^({_VERSION})$", output.stdout, re.MULTILINE)
    return found[1] if found else None


MODULE_ON_DISK = Fact(
    "nvidia module on disk",
    ("sh", "-c", 'PATH="$PATH:/usr/sbin:/sbin"; exec modinfo -F version nvidia'),
    _module_on_disk,
)
"""The version of the module that would be loaded for the running kernel; None where there is none for it."""

# ldconfig's cache says what a loader would find, and the file behind the link has the version in its name. CUDA's
# images have a newer libcuda in compat/ for older kernel modules: none of the driver's.
_LIBRARIES = """\
PATH="$PATH:/usr/sbin:/sbin"
ldconfig -p | while read -r name rest; do
    case $name:$rest in
    *:*/compat/*) ;;
    libcuda.so.1:* | libnvidia-ml.so.1:*) readlink -f "${rest##*=> }" ;;
    esac
done
"""


def _libraries(output: Output) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, version in re.findall(rf"/(libcuda|libnvidia-ml)\.so\.({_VERSION})$", output.stdout, re.MULTILINE):
        if version not in found.get(name, ()):
            found[name] = (*found.get(name, ()), version)
    return found


LIBRARIES = Fact("nvidia libraries", ("sh", "-c", _LIBRARIES), _libraries)
"""The versions of the driver's libraries that a loader finds, first one first, by name: libcuda, libnvidia-ml."""


@dataclass(frozen=True)
class DkmsModule:
    """A module that DKMS builds: `kernel` is None where it has been built for none."""

    version: str
    kernel: str | None
    state: str


def _dkms(output: Output) -> tuple[DkmsModule, ...]:
    rows = re.findall(r"^nvidia[\w-]*(?:/|, )([^,:\s]+)(?:, ([^,:\s]+), [^,:\s]+)?: (.+)$", output.stdout, re.MULTILINE)
    return tuple(DkmsModule(version, kernel or None, state.strip()) for version, kernel, state in rows)


DKMS = Fact("dkms", ("sh", "-c", 'PATH="$PATH:/usr/sbin:/sbin"; exec dkms status'), _dkms)


@dataclass(frozen=True)
class PciGpu:
    """An NVIDIA GPU as the bus knows it, and the kernel driver that holds it: nvidia, nouveau, vfio-pci, or None."""

    address: str
    driver: str | None


# The vendor is NVIDIA's, the class a display's or a 3D controller's.
_PCI = """\
for each in /sys/bus/pci/devices/*; do
    read -r vendor <"$each/vendor" && [ "$vendor" = 0x10de ] && read -r class <"$each/class" || continue
    case $class in 0x0300* | 0x0302*) ;; *) continue ;; esac
    driver=$(readlink "$each/driver")
    echo "${each##*/} ${driver##*/}"
done
:
"""


def _pci(output: Output) -> tuple[PciGpu, ...]:
    rows = [line.split() for line in output.stdout.splitlines() if line.strip()]
    return tuple(PciGpu(row[0], row[1] if len(row) > 1 else None) for row in rows)


PCI_GPUS = Fact("pci gpus", ("sh", "-c", _PCI), _pci)
