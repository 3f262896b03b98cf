"""What a container lets its programs do with the GPUs: the nodes that open, the libraries that are found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash.provision.fact import Fact, Output

ASKED = ("libcuda.so.1", "libnvidia-ml.so.1")
"""What CUDA programs ask the loader for."""

_OPEN = """
import errno, os, stat
def names(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []
here = ["/dev/" + name for name in names("/dev") if name.startswith("nvidia")]
here += ["/dev/nvidia-caps/" + name for name in names("/dev/nvidia-caps")]
for path in sorted({*here, "/dev/nvidiactl", "/dev/nvidia-uvm"} - {"/dev/nvidia-caps"}):
    try:
        if not stat.S_ISCHR(os.stat(path).st_mode):
            print(path, "FILE")
            continue
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        print(path, "OK")
    except OSError as failure:
        print(path, errno.errorcode.get(failure.errno, str(failure.errno)))
"""

_FIND = """
import os, subprocess
try:
    with open("/sys/module/nvidia/version") as file:
        module = file.read().strip()
except OSError:
    module = ""
environment = dict(os.environ, PATH=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
try:
    cache = subprocess.run(["ldconfig", "-p"], env=environment, stdout=-1, stderr=-3).stdout.decode()
except OSError:
    cache = ""
found = {}
for line in cache.splitlines():
    words = line.split()
    # CUDA's images bring a newer libcuda for older kernel modules: right as it is, and none of the driver's.
    if not words or words[0] in found or "/compat/" in words[-1]:
        continue
    if words[0] in ("libcuda.so.1", "libnvidia-ml.so.1"):
        found[words[0]] = words[-1]
        print("cache", words[0], words[-1])
places = ["/usr/lib/%s-linux-gnu" % os.uname().machine, "/usr/lib64", "/usr/lib"]
for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
    paths = [found[name]] if name in found else []
    paths += [place + "/" + name for place in places]
    path = next((path for path in paths if os.path.exists(path)), None)
    if path is None:
        continue
    version = os.path.realpath(path).rpartition(".so.")[2]
    if version == "1":
        # A file mounted under this name does not say its version; it has it inside.
        with open(path, "rb") as file:
            version = module if module and module.encode() in file.read() else "?"
    print("file", name, path, version)
"""


@dataclass(frozen=True)
class Libraries:
    """`versions` by library; "?" where a file does not tell, and is not of the kernel module's. `cached`: those that
    the loader's cache has, with their paths."""

    versions: Mapping[str, str] = field(default_factory=dict)
    cached: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str | None:
        """The one version of all that programs ask for; "?" when they differ, None when one is not there."""
        if any(name not in self.versions for name in ASKED):
            return None
        found = set(self.versions.values())
        return found.pop() if len(found) == 1 else "?"


def parse_opens(output: Output) -> dict[str, str]:
    """OK, the name of the error of open(2), or FILE for what is no device, by path; empty without Python."""
    return dict(re.findall(r"^(/dev/\S+) (\w+)$", output.stdout, re.MULTILINE))


def gpus_of(opens: dict[str, str]) -> list[str]:
    """The nodes of GPUs among those that are there, whether they open or not."""
    return [path for path in opens if path.removeprefix("/dev/nvidia").isdigit()]


def parse_libraries(output: Output) -> Libraries:
    """Lines `file NAME PATH VERSION` and `cache NAME PATH`."""
    versions = dict(re.findall(r"^file (\S+) \S+ (\S+)$", output.stdout, re.MULTILINE))
    return Libraries(versions, dict(re.findall(r"^cache (\S+) (\S+)$", output.stdout, re.MULTILINE)))


def parse_module(output: Output) -> str | None:
    """The version of the kernel module that is loaded; every container sees it."""
    return output.stdout.strip() or None if output.ok else None


OPENS = Fact("opening NVIDIA's nodes", ("python3", "-c", _OPEN), parse_opens)
LIBRARIES = Fact("NVIDIA's libraries inside", ("python3", "-c", _FIND), parse_libraries)
MODULE = Fact("version of the loaded NVIDIA module", ("cat", "/sys/module/nvidia/version"), parse_module)
