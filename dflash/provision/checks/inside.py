"""Layer 5, inside: NVIDIA's nodes open, and the libraries are those of the host's kernel module."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dflash.finding import Finding
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.inside import ASKED, LIBRARIES, MODULE, OPENS, gpus_of

HOST: tuple[Fact[Any], ...] = ()
INSIDE: tuple[Fact[Any], ...] = (OPENS, LIBRARIES, MODULE)

_NEEDED = re.compile(r"/dev/nvidia(\d+|ctl|-uvm)")
"""What every CUDA program opens; uvm-tools, modeset and MIG's capabilities are for others."""

_PROVISION = "./inv provision gives it those of now"
_ERRORS = {
    "ENOENT": ("node-missing", "is not there", f"mount it into the container: {_PROVISION}"),
    "FILE": ("node-file", "is a file, no device", f"the host had no such node when it was mounted: {_PROVISION}"),
    "EPERM": ("node-denied", "may not be opened (EPERM)", f"allow it in the container's device cgroup: {_PROVISION}"),
    "EACCES": ("node-mode", "may not be opened (EACCES)", "chmod 0666 it on the host, or map its group"),
    "ENXIO": ("node-stale", "leads to no device (ENXIO)", "remove it, and nvidia-modprobe -c0 -u on the host"),
    "ENODEV": ("node-stale", "leads to no device (ENODEV)", "remove it, and nvidia-modprobe -c0 -u on the host"),
    "EIO": ("node-fails", "does not answer (EIO)", "look for Xid in the host's dmesg; reset the GPU, or reboot"),
}
CAUSES = {
    "node-missing": "the container is given no mount of it",
    "node-file": "an optional mount of what was not there leaves the empty file that it would have been mounted on",
    "node-denied": "the container's device cgroup does not allow its major number: it changes with updates",
    "node-mode": "its owner and mode on the host leave it to others, and the container's root is nobody special there",
    "node-stale": "it has the number of an earlier load of the driver",
    "node-fails": "the driver could not wake the GPU",
    "few-devices": "the container is given fewer, or they are not there",
    "no-libraries": "the driver's user-space half is not in the container",
    "library-mismatch": "the container has its own copy of the driver, and the host's was updated",
    "not-cached": "ldconfig has not been run since they came there",
}


def judge(host: Facts, inside: Facts, want: Wanted) -> Iterator[Finding]:
    """Nothing where no GPU is wanted and none is seen."""
    opens = {path: said for path, said in inside[OPENS].items() if _NEEDED.fullmatch(path)}
    seen = gpus_of(opens)
    if not want.gpus and not seen:
        return
    yield from _nodes(opens, seen, want)
    if inside[MODULE] is not None:
        yield from _libraries(inside)


def _nodes(opens: dict[str, str], seen: list[str], want: Wanted) -> Iterator[Finding]:
    wrong: dict[str, list[str]] = {}
    for path, said in opens.items():
        if said != "OK":
            wrong.setdefault(said, []).append(path)
    for said, paths in wrong.items():
        default = ("node-fails", f"can not be opened ({said})", "look for what the host's dmesg says of it")
        name, found, cure = _ERRORS.get(said, default)
        if want.container is None and name == "node-missing":
            cure = "as root: nvidia-modprobe -c0 -u"
        yield _fault(name, ", ".join(paths), found, cure)
    if want.gpus > len(seen):
        cure = f"see the findings on the container; {_PROVISION}"
        yield _fault("few-devices", "GPU nodes", f"{len(seen)} are there, of {want.gpus} wanted", cure)
    elif not wrong:
        yield Finding("ok", "GPU nodes", f"{len(seen)} GPUs, nvidiactl and nvidia-uvm open")


def _libraries(inside: Facts) -> Iterator[Finding]:
    module, libraries = inside[MODULE], inside[LIBRARIES]
    absent = [name for name in ASKED if name not in libraries.versions]
    subject = "NVIDIA's libraries"
    if absent:
        cure = "declare `driver: host` for the container, then ./inv provision"
        yield _fault("no-libraries", subject, f"no {', '.join(absent)}", cure)
    elif libraries.version != module:
        known = ", ".join(f"{name} is {version}" for name, version in libraries.versions.items() if version != "?")
        found = f"the kernel module is {module}, and {known or 'they are of another version'}"
        cure = "remove the container's own driver and declare `driver: host`, or install that version in it"
        yield _fault("library-mismatch", subject, found, cure)
    elif uncached := [name for name in ASKED if name not in libraries.cached]:
        found = f"{', '.join(uncached)} not in the loader's cache, where Triton looks"
        yield Finding("warn", subject, found, "run ldconfig there", "not-cached", CAUSES["not-cached"])
    else:
        yield Finding("ok", subject, f"{module}, as the kernel module")


def _fault(name: str, subject: str, found: str, cure: str) -> Finding:
    return Finding("block", subject, found, cure, name, CAUSES[name])
