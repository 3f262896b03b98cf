"""The whole check of a host: every layer on the way to its GPUs, and the environments that are in use there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash.environments.remote import HostEnvironments
from dflash.environments.spec import EnvironmentSpec, read_spec
from dflash.errors import DFlashError
from dflash.finding import Finding
from dflash.hosts.connection import Connection
from dflash.hosts.failures import HostError
from dflash.hosts.inventory import DEFAULT_ROOT, Host
from dflash.provision.applying import apply
from dflash.provision.checks.fixes import fixes_of
from dflash.provision.checks.order import first_failing, judge
from dflash.provision.checks.wanted import Wanted
from dflash.provision.facts.nvidia import numbers
from dflash.provision.look import beside, look, opened

REPOSITORY = Path(__file__).parents[2]
Tell = Callable[[str], object]


@dataclass(frozen=True)
class Checked:
    """What a check of a host found, in the order of the layers, and the seconds that it took."""

    host: Host
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing blocks."""
        return not self.layer

    @property
    def layer(self) -> str:
        """The first layer that fails, which is the one to mend; "" when none does."""
        return first_failing(self.findings)

    @property
    def mendable(self) -> list[str]:
        """The subjects of the findings that `fix_host` can do something about."""
        return [each.subject for each in fixes_of(self.findings)]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        told = {"host": self.host.name, "chain": str(self.host.chain), "ok": self.ok, "layer": self.layer}
        return {
            **told,
            "mendable": self.mendable,
            "findings": [each.to_json() for each in self.findings],
            "seconds": round(self.seconds, 3),
        }


def check_host(host: Host, *, environments: bool = True, repository: Path = REPOSITORY) -> Checked:
    """Look at a host and at the end of its chain, and judge both. A container that can not be reached is a finding.
    Without `environments`, those in use there are not looked at.

    Raises:
        HostError: the host itself can not be reached, or the connection broke.
    """
    begun = time.monotonic()
    with opened(host.chain) as way:
        later = beside(lambda: look(way, wanted(host)))
        used = Environments(way.inside, host, repository) if way.inside and environments else None
        findings, drivers = (list(used.findings()), used.drivers()) if used else ([], [])
        seen = later()
        want = replace(wanted(host), min_driver=max(drivers, key=numbers, default=None), now=seen.began)
        found = judge(seen.host, seen.inside, want)
        if way.failure and not any(each.severity == "block" and each.layer == "container" for each in found):
            found.append(_unreached(way.failure))
    return Checked(host, (*found, *findings), time.monotonic() - begun)


def fix_host(before: Checked, tell: Tell, *, repository: Path = REPOSITORY) -> Checked:
    """Undo what can be undone of what a check found, on the host, and check it again. `tell` gets each change before it
    is made, and why one was not.

    Raises:
        HostError: as `check_host`.
    """
    host = before.host
    fixes = fixes_of(before.findings)
    if not fixes:
        tell(f"{host.name}: nothing that was found can be mended by itself")
        return before
    for each in fixes:
        try:
            apply(host.chain.host, [each], tell)
        except HostError:
            raise
        except DFlashError as failure:
            tell(f"not mended: {failure}")
    return check_host(host, repository=repository)


def wanted(host: Host) -> Wanted:
    """What the inventory says of a host."""
    return Wanted(gpus=host.gpus, container=host.chain.container, root=host.root or DEFAULT_ROOT)


class Environments:
    """The environments in use at the end of a chain."""

    def __init__(self, connection: Connection, host: Host, repository: Path) -> None:
        """Ask for them. That they can not be told of is a finding, too."""
        self._known, self._folder = HostEnvironments(connection, host), repository / "envs"
        self._rows: list[dict[str, Any]] = []
        self._failure: DFlashError | None = None
        try:
            self._rows = [row for row in self._known.listed() if row["current"]]
        except HostError:
            raise
        except DFlashError as failure:
            self._failure = failure

    def findings(self) -> Iterator[Finding]:
        """What is in use, against its lock, by sizes, times and RECORDs."""
        if self._failure:
            cure = self._failure.cure or "mend what comes before it"
            yield _finding("warn", "environments", f"can not be told: {self._failure.what}", cure)
        elif not self._rows:
            yield _finding("ok", "environments", "none is in use there")
        for row in self._rows:
            name, folder = row["name"], self._folder / row["name"]
            if not (folder / "env.yaml").exists():
                found = "is in use there, and envs has no such folder here"
                yield _finding("warn", f"environment {name}", found, "check out what it was made from")
                continue
            try:
                findings, _ = self._known.verify(folder, row["path"], "quick")
            except HostError:
                raise
            except DFlashError as failure:
                yield _finding("block", f"environment {name}", failure.what, failure.cure or "")
                continue
            yield from (replace(each, subject=f"{name}: {each.subject}", layer="environment") for each in findings)

    def drivers(self) -> list[str]:
        """The oldest driver that each of them runs on, of those that say."""
        return [spec.min_driver for spec in self._specs() if spec.min_driver]

    def _specs(self) -> Iterator[EnvironmentSpec]:
        for row in self._rows:
            with suppress(DFlashError):
                yield read_spec(self._folder / row["name"] / "env.yaml")


def _finding(severity: Any, subject: str, found: str, cure: str = "") -> Finding:
    return Finding(severity, subject, found, cure, layer="environment")


def _unreached(failure: HostError) -> Finding:
    cause = "it runs, and has not what a command needs there"
    return Finding("block", failure.layer, failure.what, failure.cure or "", "unreached", cause, "container")
