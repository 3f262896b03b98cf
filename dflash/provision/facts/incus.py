"""An instance of Incus or LXD: both clients have the same form and print the same JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash.hosts.chain import Incus, Lxd
from dflash.provision.fact import MISSING, Fact, Output

_TOOLKIT = "command -v nvidia-container-cli || ls -d /snap/lxd/current"
"""The snap of LXD has the toolkit inside itself."""

Devices = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Instance:
    """`config` and `devices` are the instance's own; the expanded ones count its profiles too."""

    status: str
    config: Mapping[str, str] = field(default_factory=dict)
    devices: Devices = field(default_factory=dict)
    expanded_config: Mapping[str, str] = field(default_factory=dict)
    expanded_devices: Devices = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """The instance, None when there is none; or why the daemon did not say."""

    instance: Instance | None = None
    error: str = ""


def client(hop: Incus | Lxd) -> str:
    """LXD's client is called lxc, and is none of LXC's."""
    return "lxc" if isinstance(hop, Lxd) else "incus"


def target(hop: Incus | Lxd) -> str:
    """The client's name for the instance."""
    return f"{hop.remote}:{hop.name}" if isinstance(hop, Incus) and hop.remote else hop.name


def instance(hop: Incus | Lxd) -> Fact[Answer]:
    """What the daemon knows of an instance of the current project."""
    remote = (f"{hop.remote}:",) if isinstance(hop, Incus) and hop.remote else ()
    argv = (client(hop), "list", *remote, hop.name, "--format", "json")
    return Fact(f"instance {hop}", argv, lambda output: parse_instance(output, hop.name))


def parse_instance(output: Output, name: str) -> Answer:
    """`list` takes its word for the beginning of a name, so there may be others."""
    if not output.ok:
        said = re.findall(r"^Error: *(.*)$", output.stderr, re.MULTILINE) or output.stderr.strip().splitlines()
        missing = "there is no client" if output.status == MISSING else "the daemon does not answer"
        return Answer(error=said[-1] if said and output.status != MISSING else missing)
    try:
        found = [each for each in json.loads(output.stdout) if each["name"] == name]
    except (ValueError, KeyError, TypeError):
        return Answer(error="the client's answer is not JSON")
    if not found:
        return Answer()
    keys = ("config", "devices", "expanded_config", "expanded_devices")
    return Answer(Instance(found[0].get("status", ""), *(found[0].get(key) or {} for key in keys)))


def parse_toolkit(output: Output) -> bool:
    """Either path was printed."""
    return bool(output.stdout.strip())


TOOLKIT = Fact("NVIDIA's container toolkit", ("sh", "-c", _TOOLKIT), parse_toolkit)
