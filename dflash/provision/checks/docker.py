"""Layer 7, the Docker engine: of the host where the chain goes into one of its containers, else of the chain's end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dflash.finding import Finding, Severity
from dflash.hosts.chain import Docker
from dflash.provision.checks.faults import fault
from dflash.provision.checks.wanted import Wanted
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.engine import ENGINE, TOOLKIT
from dflash.provision.facts.nvidia import KERNEL_MODULE
from dflash.provision.facts.resources import DISKS, holding
from dflash.provision.facts.system import OWN_USERS

_HERE: tuple[Fact[Any], ...] = (ENGINE, TOOLKIT, OWN_USERS, DISKS)
HOST: tuple[Fact[Any], ...] = (*_HERE, KERNEL_MODULE)
INSIDE: tuple[Fact[Any], ...] = _HERE

GIB = 2**30
_DISK = 20


def judge(host: Facts, inside: Facts, want: Wanted) -> Iterator[Finding]:
    """Nothing where there is no engine."""
    inner = not isinstance(want.container, Docker)
    known = inside if inner else host
    engine = known[ENGINE]
    if not engine.there:
        return
    if engine.error and inner:
        yield Finding("ok", "Docker", f"not in use: {engine.error}")
        return
    if engine.error:
        cure = "systemctl start docker there, or let the user into the group docker"
        yield fault("docker-down", "Docker", engine.error, cure)
        return
    module = host[KERNEL_MODULE].version
    # An engine that is not on the way to where the work is done does not stop it.
    wrong = list(gpus(known, module, "warn" if inner else "block")) if module else []
    yield from wrong
    place = holding(known[DISKS], engine.root)
    if place and place.free < _DISK * GIB:
        found = f"{place.free / GIB:.1f} GiB free in {place.mount}, where Docker keeps its images"
        yield fault("little-disk", "Docker", found, "docker system prune, or move data-root", "warn")
    elif not wrong:
        yield Finding("ok", "Docker", engine.version)


def gpus(known: Facts, module: str, severity: Severity) -> Iterator[Finding]:
    """Whether the engine can give GPUs to a container. `severity` is that of what makes it fail."""
    engine, toolkit = known[ENGINE], known[TOOLKIT]
    if toolkit.version is None:
        cure = "install nvidia-container-toolkit, then nvidia-ctk runtime configure --runtime=docker"
        yield fault("no-toolkit", "Docker", f"{engine.version} without NVIDIA's toolkit", cure, "warn")
        return
    if known[OWN_USERS] and not toolkit.no_cgroups:
        cure = "set no-cgroups = true in /etc/nvidia-container-runtime/config.toml (section nvidia-container-cli)"
        yield fault(
            "needs-no-cgroups", "Docker", "an engine in an unprivileged container, without no-cgroups", cure, severity
        )
    if toolkit.cdi and module not in toolkit.cdi:
        cure = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        found = f"CDI describes the driver {', '.join(toolkit.cdi)}, the kernel module is {module}"
        yield fault("cdi-stale", "Docker", found, cure, severity)
    if "nvidia" not in engine.runtimes and not toolkit.cdi:
        cure = "nvidia-ctk runtime configure --runtime=docker, then restart docker"
        yield fault("no-runtime", "Docker", f"runtimes: {', '.join(engine.runtimes) or 'none'}", cure, "warn")
    elif engine.cgroup_driver == "systemd" and not toolkit.cdi and not toolkit.no_cgroups:
        cure = (
            "use CDI (nvidia-ctk cdi generate), or the cgroupfs driver: a systemctl daemon-reload takes the GPUs away"
        )
        yield fault("lost-on-reload", "Docker", "systemd sets up cgroups, and the GPUs come by a hook", cure, "warn")
