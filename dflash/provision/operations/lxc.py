"""An LXC container: made from a root file system, configured, and running."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import DFlashError
from dflash.hosts.chain import Lxc
from dflash.provision.container import ContainerSpec, wanted_nodes
from dflash.provision.fact import Fact, Facts, Output
from dflash.provision.facts import driver, idmap, lxc, nodes
from dflash.provision.facts.lxc import Entry
from dflash.provision.operation import Action, Change, Kept
from dflash.provision.operations import binds
from dflash.provision.operations.writing import write_text

BEGIN, END = "# dflash: what is declared begins", "# dflash: what is declared ends"
_SHIPPED = "/usr/share/lxc/config"
_IDS = 65536

_OWN_USERS = (
    # A user namespace may mount sysfs only with a network of its own; NCCL and the checks read the host's in /sys.
    "lxc.mount.auto =",
    "lxc.mount.auto = proc:mixed cgroup:mixed",
    "lxc.mount.entry = /sys sys none rbind,create=dir 0 0",
)

UNPACK = """set -e
mkdir -p "$2"
rm -rf --one-file-system "$2/rootfs.part"
mkdir "$2/rootfs.part"
if [ "$3" ]; then
    chmod 0755 "$2"
    chown "$3:$4" "$2/rootfs.part"
    lxc-usernsexec -m "u:0:$3:65536" -m "g:0:$4:65536" -- \\
        tar --numeric-owner --exclude='./dev/*' -xpf - -C "$2/rootfs.part" <"$1"
else
    tar --numeric-owner -xpf "$1" -C "$2/rootfs.part"
fi
mv "$2/rootfs.part" "$2/rootfs"
"""
"""Tarball, the container's folder, and for an unprivileged one its first user and group id. The root file system is
there whole or not at all. Device nodes can not be made in a user namespace, and LXC makes those of /dev itself."""

DOWNLOAD = """set -e
draft=$(mktemp)
trap 'rm -f "$draft"' EXIT
cat >"$draft"
lxc-create -n "$1" -t download -f "$draft" -- -d "$2" -r "$3" -a "$4"
"""
"""Name, distribution, release, architecture; it reads the configuration."""


# A container must outlive the connection that it was started by, whose end kills all that was started (agent.py): it is
# systemd's, or else that of a shell which is left alone as the keeper of a detached job is, by the word dflash-job.
START = """
log=$(mktemp)
trap 'rm -f -- "$log"' EXIT
if [ -d /run/systemd/system ] && systemctl cat lxc@.service >/dev/null 2>&1; then
    systemctl start "lxc@$1.service" || exit
else
    setsid env -u DFLASH_AGENT sh -c 'lxc-start -n "$2" -F; :' sh dflash-job "$1" </dev/null >"$log" 2>&1 &
fi
lxc-wait -n "$1" -s RUNNING -t 30 && exit
cat "$log" >&2
echo "it did not start within 30 s" >&2
exit 1
"""
"""Name."""


def parse_unified(output: Output) -> bool:
    """Whether cgroups are of version 2 alone, so that limits are set there."""
    return output.ok


UNIFIED = Fact("cgroups of version 2", ("cat", "/sys/fs/cgroup/cgroup.controllers"), parse_unified)


@dataclass(frozen=True)
class Container:
    """The container of an `lxc:` hop, on the host before it. A change of its configuration restarts it."""

    hop: Lxc
    spec: ContainerSpec

    def facts(self) -> Sequence[Fact[Any]]:
        """LXC, the container, and what of the host goes into it."""
        name = self.hop.name
        container = (lxc.PLACE, lxc.state(name), lxc.config(name), lxc.rootfs(name))
        host = (nodes.nodes(self.spec.devices), nodes.GPUS, driver.DRIVER, idmap.SUBUID, idmap.SUBGID, UNIFIED)
        return (*container, *host)

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        """Creation, configuration, state. Raises DFlashError without LXC, a device or a range of ids, and for what can
        not be changed in a container that is there."""
        place = known[lxc.PLACE]
        if place is None:
            raise DFlashError("LXC is not installed", where=str(self.hop), cure="install the package lxc there")
        folder = f"{place}/{self.hop.name}"
        text = known[lxc.config(self.hop.name)]
        self._refuse(text, known)
        ids = None if self.spec.privileged or text is not None else self._ids(known)
        old = self._base(folder, ids) if text is None else text
        new = lxc.merged(old, self._wanted(known), BEGIN, END)
        if text is not None or known[lxc.rootfs(self.hop.name)]:
            yield Kept(f"container {self.hop}", "it is there")
        else:
            yield Change(f"container {self.hop}", "", f"made from {self.spec.image}", (self._make(folder, ids),))
        yield from self._configure(folder, text, new, known[lxc.state(self.hop.name)])

    def _make(self, folder: str, ids: tuple[int, int] | None) -> Action:
        if self.spec.image.startswith("/"):
            return Action(("sh", "-c", UNPACK, "sh", self.spec.image, folder, *(map(str, ids) if ids else ("", ""))))
        words = self.spec.image.split(":")
        if len(words) != 4 or words[0] != "download" or not all(words):
            cure = "give the path of a tarball there, or download:DISTRIBUTION:RELEASE:ARCHITECTURE"
            raise DFlashError(f"{self.spec.image!r} is no image for LXC", where=str(self.hop), cure=cure)
        return Action(("sh", "-c", DOWNLOAD, "sh", self.hop.name, *words[1:]), self._users(ids).encode())

    def _configure(self, folder: str, text: str | None, new: str, state: str | None) -> Iterator[Change | Kept]:
        before, after = lxc.entries(text or ""), lxc.entries(new)
        name, running = self.hop.name, state not in (None, "STOPPED")
        start = Action(("sh", "-c", START, "sh", name))
        if text is not None and before == after:
            yield Kept(f"configuration of {self.hop}", "what is declared is in it")
        else:
            # A byte that is not UTF-8 was read as U+FFFD, and would be written back as that.
            if "\ufffd" in new:
                what = "it is not UTF-8, so it can not be edited"
                raise DFlashError(what, where=f"{folder}/config", cure="write it in UTF-8")
            write = write_text(f"{folder}/config", new)
            # Stopped first: one that still runs beside a new file would look as if it had been started with it.
            stop = (Action(("lxc-stop", "-n", name, "-t", "60")),) if running else ()
            note = "\nthe container is stopped: what runs in it ends" if running else ""
            subject = f"configuration of {self.hop}"
            yield Change(subject, binds.shown(before), binds.shown(after) + note, (*stop, write))
            state = "STOPPED" if running else state
        if state == "RUNNING":
            yield Kept(f"state of {self.hop}", "it runs")
        elif state == "FROZEN":
            yield Change(f"state of {self.hop}", "frozen", "running", (Action(("lxc-unfreeze", "-n", name)),))
        else:
            yield Change(f"state of {self.hop}", (state or "absent").lower(), "running", (start,))

    def _refuse(self, text: str | None, known: Facts) -> None:
        where = f"{known[lxc.PLACE]}/{self.hop.name}/config"
        if why := lxc.unread(known.outputs[lxc.config(self.hop.name)]):
            raise DFlashError(f"it can not be read: {why}", where=where, cure="see that `cat` prints it there")
        if text is None:
            return
        try:
            lxc.split(text, BEGIN, END)
        except ValueError as failure:
            cure = "put it where the declared lines end"
            raise DFlashError(str(failure), where=where, cure=cure) from None
        privileged = not lxc.values(lxc.entries(text), "lxc.idmap")
        if privileged != self.spec.privileged:
            is_, wanted = ("", "un") if privileged else ("un", "")
            what = f"the container is {is_}privileged, and declared {wanted}privileged"
            cure = f"its files belong to other ids: declare privileged: {str(privileged).lower()}, or make one anew"
            raise DFlashError(what, where=str(self.hop), cure=f"{cure} under another name")

    def _ids(self, known: Facts) -> tuple[int, int]:
        user, group = idmap.first_of(known[idmap.SUBUID]), idmap.first_of(known[idmap.SUBGID])
        if user is None or group is None:
            file = "/etc/subuid" if user is None else "/etc/subgid"
            cure = f"add the line root:100000:{_IDS} to {file} there, or declare privileged: true"
            raise DFlashError(f"root may give no {_IDS} ids to a container", where=str(self.hop), cure=cure)
        return user.start, group.start

    def _users(self, ids: tuple[int, int] | None) -> str:
        """Whose the files are."""
        includes = ["common.conf", *(["userns.conf"] if ids else [])]
        lines = [f"lxc.include = {_SHIPPED}/{name}" for name in includes]
        lines += [f"lxc.idmap = {kind} 0 {first} {_IDS}" for kind, first in zip("ug", ids or (), strict=False)]
        return "".join(f"{line}\n" for line in [*lines, *(_OWN_USERS if ids else ())])

    def _base(self, folder: str, ids: tuple[int, int] | None) -> str:
        """What a new container begins with; from then on it is as a person leaves it."""
        lines = [f"lxc.uts.name = {self.hop.name}", f"lxc.rootfs.path = dir:{folder}/rootfs", "lxc.net.0.type = none"]
        return self._users(ids) + "".join(f"{line}\n" for line in lines)

    def _wanted(self, known: Facts) -> list[Entry]:
        spec = self.spec
        found = wanted_nodes(spec, known[nodes.nodes(spec.devices)], known[nodes.GPUS], str(self.hop))
        return [
            *self._choices(known[lxc.config(self.hop.name)]),
            *self._limits(known[UNIFIED]),
            *self._network(),
            *binds.device_lines(found),
            *binds.driver_lines(spec, known[driver.DRIVER], str(self.hop)),
            *binds.memory_lines(spec),
            *binds.mount_lines(spec),
            *binds.raw_lines(spec),
        ]

    def _choices(self, text: str | None) -> Iterator[Entry]:
        """What may be left to what was once declared, or to a person."""
        block = lxc.entries("\n".join(lxc.split(text or "", BEGIN, END)[1]))
        nesting, before = ("lxc.include", f"{_SHIPPED}/nesting.conf"), lxc.values(block, "lxc.start.auto")
        if self.spec.nesting or (self.spec.nesting is None and nesting in block):
            yield nesting
        if self.spec.autostart is not None:
            yield "lxc.start.auto", "1" if self.spec.autostart else "0"
        elif text is None or before:
            yield "lxc.start.auto", before[-1] if before else "1"

    def _limits(self, unified: bool) -> Iterator[Entry]:
        """A limit that the host's cgroups do not know would keep the container from starting."""
        if self.spec.memory_gib is not None:
            key = "lxc.cgroup2.memory.max" if unified else "lxc.cgroup.memory.limit_in_bytes"
            yield key, f"{self.spec.memory_gib}G"
        if self.spec.cores is not None:
            period, quota = "100000", str(self.spec.cores * 100_000)
            yield ("lxc.cgroup2.cpu.max", f"{quota} {period}") if unified else ("lxc.cgroup.cpu.cfs_quota_us", quota)

    def _network(self) -> Iterator[Entry]:
        if self.spec.network:
            yield "lxc.net.0.type", "veth"
            yield "lxc.net.0.link", self.spec.network
            yield "lxc.net.0.flags", "up"
