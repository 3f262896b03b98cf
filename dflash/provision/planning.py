"""What provisioning comes to, as data: stages, their operations, and what each would do. Nothing here reaches a host.

A chain has one stage, or two where a container is on the way: the machine before the first container, which has the
kernel and the driver, and then the end of the chain.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from dflash.errors import DFlashError, UsageError
from dflash.hosts.chain import Chain
from dflash.hosts.inventory import DEFAULT_ROOT, Host
from dflash.provision.declaration import MachineSpec, PartSpec
from dflash.provision.fact import Facts
from dflash.provision.facts.users import Login
from dflash.provision.operation import Change, Kept, Operation
from dflash.provision.operations.container import inside, on_host
from dflash.provision.operations.directory import Directory
from dflash.provision.operations.limits import WITHOUT_LOGIN, Limits
from dflash.provision.operations.mounts import Mount
from dflash.provision.operations.packages import Packages
from dflash.provision.operations.persistence import PersistenceMode
from dflash.provision.operations.python import PythonInRange
from dflash.provision.operations.user import User
from dflash.provision.operations.uv import Uv
from dflash.provision.operations.uvm import UvmDevice
from dflash.validation import suggestion

NAMES = (
    "packages",
    "user",
    "python",
    "driver",
    "uv",
    "persistence",
    "uvm",
    "limits",
    "mounts",
    "directories",
    "container",
)
"""What `--only` may name."""


@dataclass(frozen=True)
class Named:
    """An operation, the name that `--only` knows it by, and what it is about, for when nothing is known yet."""

    name: str
    operation: Operation
    subject: str


@dataclass(frozen=True)
class Refused:
    """An operation that can not be planned, and why."""

    subject: str
    error: DFlashError


@dataclass(frozen=True)
class Declared:
    """An operation of a machine that is not there yet, or of which nothing can be known yet."""

    subject: str


@dataclass(frozen=True)
class Step:
    """What an operation would do, or do without, or has done."""

    name: str
    outcome: Change | Kept | Refused | Declared


@dataclass(frozen=True)
class Stage:
    """One machine of a chain, and its operations, which are known as soon as it is known who logs in there."""

    chain: Chain
    operations: Callable[[Login], tuple[Named, ...]]


def stages(host: Host, spec: MachineSpec, only: Sequence[str] = ()) -> list[Stage]:
    """What to do where, in order.

    Raises:
        UsageError: `only` names no operation, or the section declares a container that the chain does not have, or
            limits where they would be without effect.
    """
    for name in only:
        if name not in NAMES:
            raise UsageError(f"there is no operation {name!r}", where="--only", cure=suggestion(name, NAMES, "names"))
    cure = WITHOUT_LOGIN.get(type(host.chain.hops[-1]))
    if spec.limits and cure:
        what = f"`limits` are of logins, and {host.chain.hops[-1]} is entered without one"
        raise UsageError(what, where=f"{host.name} ({host.chain})", cure=cure)
    container = host.chain.container
    made = spec.container
    if container is None:
        if made or spec.host != PartSpec():
            what = "`host` and `container` are of a chain with a container, and this has none"
            raise UsageError(what, where=f"{host.name} ({host.chain})", cure="leave them out, or name it in the chain")
        return [Stage(host.chain, lambda login: _chosen(_work(host, spec, login, _kernel(host, spec)), only))]
    makers = [Named("container", each, f"container {container}") for each in on_host(container, made)] if made else []
    driver = [Named("driver", each, "NVIDIA driver inside") for each in inside(made)] if made else []
    return [
        Stage(host.chain.host, lambda login: _chosen([*_part(spec.host, login, _kernel(host, spec)), *makers], only)),
        Stage(host.chain, lambda login: _chosen(_work(host, spec, login, driver), only)),
    ]


def plan_of(each: Named, known: Facts) -> list[Change | Kept]:
    """What one operation would do.

    Raises:
        DFlashError: it can not be made so, or what it must know is not known: a command that does not end tells
            nothing, least of all that something is absent.
    """
    for fact in each.operation.facts():
        if known.outputs[fact].hung:
            what = f"what it needs to know is not to be had: the command for {fact.name!r} does not end"
            raise DFlashError(what, cure="find out there what hangs (a mount, a directory of users, a driver)")
    return list(each.operation.plan(known))


def planned(operations: Iterable[Named], known: Facts, *, first: bool = False) -> list[Step]:
    """What each operation would do, as far as `known` tells. One that refuses once something before it is to be changed
    (`first`: before all of them) may be of another mind then, so it stays as declared."""
    steps: list[Step] = []
    for each in operations:
        try:
            steps += [Step(each.name, outcome) for outcome in plan_of(each, known)]
        except DFlashError as failure:
            changes = first or any(isinstance(step.outcome, Change) for step in steps)
            steps.append(Step(each.name, Declared(each.subject) if changes else Refused(each.subject, failure)))
    return steps


def lines_of(step: Step, layer: str) -> list[str]:
    """A step as lines: what would change as a unified diff, anything else in one line with its reason."""
    match step.outcome:
        case Change(subject, before, after):
            sides = before.splitlines(), after.splitlines()
            return list(difflib.unified_diff(*sides, f"{layer} {subject}", "as declared", lineterm=""))
        case Kept(subject, why):
            return [f"{layer} {subject}: {why}"]
        case Declared(subject):
            return [f"{layer} {subject}: as declared, after what comes before it"]
        case Refused(subject, error):
            return [f"{layer} {subject}: can not be made so: {error}"]


def _work(host: Host, spec: MachineSpec, login: Login, driver: Sequence[Named]) -> list[Named]:
    """The end of the chain, where environments are made and work runs."""
    root = host.root or DEFAULT_ROOT.replace("~", login.home.rstrip("/"), 1)
    python = Named("python", PythonInRange(spec.python), f"Python {spec.python}")
    ours = _part(spec, login, (python, *driver))
    # `tools` too: the next version of uv is put there by who logs in.
    for path in (root, f"{root}/tools"):
        ours.append(_directory(path, spec, login))
    if not host.chain.is_local:  # here `env.create` uses .venv's own
        ours.append(_uv(root, login))
    return ours


def _kernel(host: Host, spec: MachineSpec) -> tuple[Named, ...]:
    """What GPUs need of the machine with their driver."""
    persistence = Named("persistence", PersistenceMode(), "persistence")
    uvm = Named("uvm", UvmDevice(), "/dev/nvidia-uvm")
    return (*((persistence,) if spec.persistence else ()), *((uvm,) if host.gpus else ()))


def _part(part: PartSpec, login: Login, more: Sequence[Named]) -> list[Named]:
    """`more` comes after packages and user, of which it may need some, and before what lies on mounted disks."""
    found = []
    if part.packages:
        found.append(Named("packages", Packages(tuple(part.packages)), f"packages {', '.join(part.packages)}"))
    if part.user:
        found.append(Named("user", User(part.user, tuple(part.groups)), f"user {part.user}"))
    found += more
    if part.limits:
        found.append(Named("limits", Limits(part.limits), f"limits {', '.join(part.limits)}"))
    for place, mount in part.mounts.items():
        operation = Mount(place, mount.source, mount.type, mount.options, mount.fstab)
        found.append(Named("mounts", operation, f"mount {place}"))
    for path in part.directories:
        found.append(_directory(path, part, login))
    return found


def _directory(path: str, part: PartSpec, login: Login) -> Named:
    """Whoever makes it, who logs in uses it."""
    owner = part.user or ("" if login.uid == 0 else login.name)
    return Named("directories", Directory(path, owner, login.name), f"directory {path}")


def _uv(root: str, login: Login) -> Named:
    tool, number = Path(sys.prefix) / "bin" / "uv", version("uv")
    place = f"{root}/tools/uv-{number}/uv"
    size, machine = tool.stat().st_size, os.uname().machine
    return Named("uv", Uv(place, number, tool, size, machine, login.name), f"uv {number}")


def _chosen(operations: Iterable[Named], only: Sequence[str]) -> tuple[Named, ...]:
    return tuple(each for each in operations if not only or each.name in only)
