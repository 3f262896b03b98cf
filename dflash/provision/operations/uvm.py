"""CUDA's own device, /dev/nvidia-uvm. It is made at its first use as root, and in a container nobody is root of the
host: until then cuInit fails there, while nvidia-smi works (facts/remote.md, section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import DFlashError
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.files import stat_of, text_of
from dflash.provision.facts.nodes import MAJORS
from dflash.provision.operation import Action, Change, Kept

NODE = "/dev/nvidia-uvm"
_DRIVER = text_of("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class UvmDevice:
    """The module nvidia-uvm is loaded, and its node has the major number that it got."""

    def facts(self) -> Sequence[Fact[Any]]:
        return [_DRIVER, stat_of(NODE), MAJORS]

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        if known[_DRIVER] is None:
            raise DFlashError("the NVIDIA driver is not loaded", cure="install it there, or `modprobe nvidia`")
        node, major = known[stat_of(NODE)], known[MAJORS].get("nvidia-uvm")
        if node.kind == "character special file" and node.major == major:
            yield Kept(NODE, f"it is there with major {major}")
            return
        before = f"{node.kind} with major {node.major}" if node.kind else "absent"
        after = f"character special file with major {major if major else '(what the module gets)'}"
        # It loads the module, and makes a node that has another number again.
        yield Change(NODE, before, after, (Action(("nvidia-modprobe", "-c0", "-u")),))
