"""Limits of processes, for logins: NCCL and pinned memory need memlock, data loaders many open files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import DFlashError
from dflash.hosts.chain import Docker, Incus, Lxc, Lxd, Pct
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.files import text_of
from dflash.provision.operation import Change, Kept
from dflash.provision.operations.writing import write_text

FILE = "/etc/security/limits.d/90-dflash.conf"
WITHOUT_LOGIN = {
    Pct: "declare them under `host`: what is attached has those of the login there",
    Lxc: "declare them under `host`: what is attached has those of the login there",
    Incus: "set the instance's limits.kernel.memlock and such (`incus config set`)",
    Lxd: "set the instance's limits.kernel.memlock and such (`lxc config set`)",
    Docker: "set default-ulimits in the daemon.json of Docker there, before the container is made",
}
"""Hops that are entered without a login, and what has the limits there instead."""
_MOST_FILES = text_of("/proc/sys/fs/nr_open")


@dataclass(frozen=True)
class Limits:
    """PAM gives every login these limits, soft and hard: `{"memlock": "unlimited", "nofile": 1048576}`. Who is logged
    in already keeps the old ones. What is attached to a container without a login has other limits (WITHOUT_LOGIN)."""

    values: Mapping[str, int | str]
    file: str = FILE

    def facts(self) -> Sequence[Fact[Any]]:
        return [text_of(self.file), _MOST_FILES]

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        most, wanted = known[_MOST_FILES], self.values.get("nofile")
        if most is not None and wanted is not None and (wanted == "unlimited" or int(wanted) > int(most)):
            what = f"nofile {wanted} is above fs.nr_open ({most.strip()}), with which nobody could log in any more"
            raise DFlashError(what, cure="ask for less, or raise fs.nr_open there first")
        now, text = known[text_of(self.file)], self.text()
        if now == text:
            yield Kept("limits", f"{self.file} says so")
        else:
            yield Change("limits", now or "", text, (write_text(self.file, text),))

    def text(self) -> str:
        """`*` is everybody but root."""
        rows = [f"{who} - {name} {value}" for name, value in self.values.items() for who in ("*", "root")]
        return "\n".join(("# written by ./inv provision", *rows, ""))
