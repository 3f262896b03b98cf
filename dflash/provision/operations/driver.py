"""The user-space half of NVIDIA's driver in a container: the same version as the host's kernel module.

The two must be equal to the last digit, or nothing computes ("Driver/library version mismatch"). Packages and the
`.run` installer are right on the day they are installed; after the host's next update they are not, and a version
that the host runs is soon gone from a distribution's archive. So by default a Proxmox or LXC container sees the
host's own files, mounted read-only under the names by which programs ask for them (libcuda.so.1, not
libcuda.so.550.54.15): the link is followed at each start, hence what is mounted is always what the host uses, and
there is nothing that could be of another version. (Few files have a version in the name itself: those may be absent,
and provisioning again brings their successors.) It needs a container whose libraries are kept in the same places
as the host's (Debian and Ubuntu are alike), and whose C library is not older than what the files ask for. For Incus,
LXD and Docker, NVIDIA's toolkit does the same.

What is left to do inside is `ldconfig`, since Triton asks its cache. Where another distribution is inside, a
declared `.run` installer is run there, without its kernel modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import DFlashError
from dflash.provision.container import INSTALLER, ContainerSpec
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts import inside
from dflash.provision.operation import Action, Change, Kept

INSTALL = """set -e
without=--no-kernel-module
case $(sh "$1" --advanced-options) in *--no-kernel-modules*) without=--no-kernel-modules ;; esac
sh "$1" --silent "$without" --no-nouveau-check --no-backup
"""
"""The installer. Newer ones have another word for leaving the kernel modules out, and each knows its own alone."""


@dataclass(frozen=True)
class Driver:
    """The driver's files in the container that `spec` declares, as seen from the inside."""

    spec: ContainerSpec

    def facts(self) -> Sequence[Fact[Any]]:
        """The kernel module and the libraries."""
        return (inside.MODULE, inside.LIBRARIES)

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        """The libraries, then the loader's cache. Raises DFlashError when the kernel module is not loaded, when there
        are no files and none are declared, and for an installer of another version."""
        if not self.spec.gpus:
            yield Kept("NVIDIA driver", "no GPU is declared")
            return
        module, libraries = known[inside.MODULE], known[inside.LIBRARIES]
        if module is None:
            cure = "load it on the host (modprobe nvidia), or install the driver there"
            raise DFlashError("the host's kernel has no NVIDIA module", where="NVIDIA driver", cure=cure)
        if libraries.version == module:
            yield Kept("NVIDIA driver", f"libraries and kernel module are {module}")
            missing = [name for name in inside.ASKED if name not in libraries.cached]
            if missing:
                actions = (Action(("ldconfig",)),)
                yield Change("loader's cache", "", "\n".join(missing), actions)
            else:
                yield Kept("loader's cache", f"it has {' and '.join(inside.ASKED)}")
            return
        yield self._install(module, libraries.version)

    def _install(self, module: str, before: str | None) -> Change:
        found = f"the libraries are {before}" if before else "there are no libraries"
        if self.spec.driver in ("host", "image"):
            cure = "start the container anew, so that it mounts the host's files of now"
            if self.spec.driver == "image":
                cure = "declare driver: host, or an image with that version"
            what = f"the kernel module is {module}, and {found}"
            raise DFlashError(what, where="NVIDIA driver", cure=cure)
        folder, _, name = self.spec.driver.rpartition("/")
        version = re.search(r"\d+\.\d+(\.\d+)?(?=\D*$)", name.replace("x86_64", "").removesuffix(".run"))
        if version is None or version[0] != module:
            cure = f"put NVIDIA-Linux-…-{module}.run into {folder or '/'} of the host, and declare it"
            raise DFlashError(f"{name} is not the installer of {module}", where="NVIDIA driver", cure=cure)
        argv = ("sh", "-c", INSTALL, "sh", f"{INSTALLER}/{name}")
        return Change("NVIDIA driver", before or "", module, (Action(argv), Action(("ldconfig",))))
