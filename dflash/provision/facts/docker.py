"""A Docker container, as `docker inspect` tells it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash.provision.fact import MISSING, Fact, Output

_TOOLKIT = "command -v nvidia-container-runtime-hook || ls /etc/cdi/nvidia.yaml /var/run/cdi/nvidia.yaml"
"""`--gpus` needs the hook, or from Docker 28.3 on a CDI specification."""

_FORMAT = (
    '{"Id":{{json .Id}},"State":{{json .State.Status}},"Image":{{json .Config.Image}},'
    '"HostConfig":{{json .HostConfig}},"Mounts":{{json .Mounts}},'
    '"Visible":[{{range .Config.Env}}{{$pair := split . "="}}'
    '{{if eq (index $pair 0) "NVIDIA_VISIBLE_DEVICES"}}{{json (index $pair 1)}}{{end}}{{end}}]}'
)
"""Not all of it: a container's environment may hold secrets. Of that, what NVIDIA's runtime goes by."""


_CDI = "nvidia.com/gpu="


@dataclass(frozen=True)
class Inspected:
    """A container. Sizes are bytes, `cores` a number of CPUs; 0 is no limit. `gpus` is "", "all" or indices."""

    id: str
    state: str
    image: str
    cores: float = 0
    memory: int = 0
    shm: int = 0
    network: str = ""
    restart: str = ""
    privileged: bool = False
    gpus: str = ""
    devices: tuple[str, ...] = ()
    mounts: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    """Source and whether it is read-only, by the path inside."""
    volumes: tuple[str, ...] = ()
    """Where what Docker itself keeps is mounted."""


@dataclass(frozen=True)
class Answer:
    """The container, None when there is none; or why the daemon did not say."""

    container: Inspected | None = None
    error: str = ""


def container(name: str) -> Fact[Answer]:
    """What the daemon knows of a container."""
    argv = ("docker", "inspect", "--type", "container", "--format", _FORMAT, name)
    return Fact(f"container docker:{name}", argv, parse_container)


def parse_container(output: Output) -> Answer:
    """An object of JSON, or on standard error why not."""
    if not output.ok:
        if "no such container" in output.stderr.lower():
            return Answer()
        said = output.stderr.strip().splitlines()
        return Answer(error="there is no client" if output.status == MISSING else said[-1] if said else "no answer")
    try:
        return Answer(_inspected(json.loads(output.stdout)))
    except (ValueError, KeyError, TypeError):
        return Answer(error="the client's answer is not what `docker inspect` prints")


def _inspected(found: Mapping[str, Any]) -> Inspected:
    host = found["HostConfig"]
    mounts = found.get("Mounts") or ()
    binds = [each for each in mounts if each["Type"] == "bind"]
    return Inspected(
        id=found["Id"],
        state=found["State"],
        image=found["Image"],
        cores=(host.get("NanoCpus") or 0) / 1e9,
        memory=host.get("Memory") or 0,
        shm=host.get("ShmSize") or 0,
        network=host.get("NetworkMode", ""),
        restart=(host.get("RestartPolicy") or {}).get("Name", ""),
        privileged=bool(host.get("Privileged")),
        gpus=_gpus(host.get("DeviceRequests") or ()) or _visible(host.get("Runtime"), found.get("Visible") or ()),
        devices=tuple(each["PathOnHost"] for each in host.get("Devices") or ()),
        mounts={each["Destination"]: (each["Source"], not each["RW"]) for each in binds},
        volumes=tuple(each["Destination"] for each in mounts if each["Type"] != "bind"),
    )


def _gpus(requests: Any) -> str:
    """`--gpus` by their number or their names, or `--device nvidia.com/gpu=…`. A number counts from the first."""
    for each in requests:
        count, names = each.get("Count") or 0, each.get("DeviceIDs") or ()
        if any(name.startswith(_CDI) for name in names):
            return _named(names)
        if any("gpu" in group for group in each.get("Capabilities") or ()):
            return "all" if count == -1 else _named(names or [str(number) for number in range(count)])
    return ""


def _visible(runtime: Any, names: Sequence[str]) -> str:
    """What NVIDIA's runtime gives without `--gpus`."""
    nothing = not names or names[-1] in ("", "void", "none")
    return "" if nothing or "nvidia" not in (runtime or "") else _named(names[-1].split(","))


def _named(names: Sequence[str]) -> str:
    bare = [name.removeprefix(_CDI) for name in names]
    return "all" if "all" in bare else ",".join(bare)


def image(reference: str) -> Fact[bool]:
    """Whether the daemon has an image."""
    argv = ("docker", "image", "inspect", "--format", "{{.Id}}", reference)
    return Fact(f"image {reference}", argv, lambda output: output.ok)


def parse_toolkit(output: Output) -> bool:
    """A path was printed."""
    return bool(output.stdout.strip())


TOOLKIT = Fact("NVIDIA's toolkit for Docker", ("sh", "-c", _TOOLKIT), parse_toolkit)
