"""A Proxmox container: created and configured by `pct`, its `lxc.` lines in its file, and running.

What is declared is compared with the file's keys and properties, since Proxmox sorts the one and orders the other as
it likes. Devices are `devN` keys: Proxmox looks up their numbers at each start, where a written major goes stale with
a new kernel, and refuses to start a container whose device is not there (facts/remote.md, section 4).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import DFlashError
from dflash.hosts.chain import Pct
from dflash.provision.container import ContainerSpec, Mount, normal, wanted_nodes
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts import driver, lxc, nodes, pct
from dflash.provision.facts.lxc import Entry
from dflash.provision.facts.pct import Conf, properties, written
from dflash.provision.operation import Action, Change, Kept
from dflash.provision.operations import binds

EDIT = """set -e
draft="$1.tmp.$$"
edits=$(mktemp)
trap 'rm -f "$draft" "$edits"' EXIT
cat >"$edits"
[ "$(wc -l <"$edits")" -eq "$2" ] || { echo "of $2 lines not all came" >&2; exit 1; }
awk '
    function said(line, key) {
        gsub(/^[ \\t]+|[ \\t]+$/, "", line)
        key = line
        sub(/[ \\t]*[=:].*/, "", key)
        sub(/^[^=:]*[=:][ \\t]*/, "", line)
        return key " = " line
    }
    function add(i) { for (i = 1; i <= count; i++) print more[i] }
    NR == FNR { if (/^\\+/) more[++count] = substr($0, 2); else gone[said(substr($0, 2))] = 1; next }
    /^\\[/ && !below { below = 1; add(); if (count) print "" }
    below || !/^[ \\t]*lxc\\./ || !(said($0) in gone)
    END { if (!below) add() }
' "$edits" "$1" >"$draft"
mv -f "$draft" "$1"
"""
"""Takes from the file of its first argument the lines that it reads after a `-`, and puts those after a `+` above the
first section, below which Proxmox would pass over them. `pct` has no word for `lxc.` lines; and it may have written
the file since it was read, so that the edit is of the file as it is then, in one step. The second argument says how
many lines are to come: a caller that goes away closes our input, which looks like its end."""

_LIVE = ("onboot", "cores", "memory")
"""Keys whose change a running container takes."""

_MODE = "0666"
"""As NVIDIA's driver makes its nodes: whoever works in the container may compute."""


@dataclass(frozen=True)
class Container:
    """The container of a `pct:` hop, on its node. Devices and mounts that are not declared are left as they are; where
    GPUs are declared, it has those and no others."""

    hop: Pct
    spec: ContainerSpec

    def facts(self) -> Sequence[Fact[Any]]:
        """The node, the container, and what of the host goes into it."""
        container = (pct.NODE, pct.PLACES, pct.conf(self.hop.id), pct.status(self.hop.id))
        return (*container, nodes.nodes(self.spec.devices), nodes.GPUS, driver.DRIVER)

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        """Creation, keys, `lxc.` lines, state. Raises DFlashError on another node than the container's, on no node,
        for a device that is not there, and for what can not be changed in a container that is there."""
        conf = known[pct.conf(self.hop.id)]
        self._refuse(known, conf)
        found = wanted_nodes(self.spec, known[nodes.nodes(self.spec.devices)], known[nodes.GPUS], str(self.hop))
        paths = [node.path for node in found]
        has = conf or Conf()
        wanted, unwanted = self._keys(conf, paths)
        status = known[pct.status(self.hop.id)] or "stopped"
        if conf is None:
            yield self._create(wanted)
        else:
            yield Kept(f"container {self.hop}", "it is there")
            yield self._set(has, wanted, unwanted)
        lines = self._lines(has, known)
        yield lines
        waits = unwanted or any(key not in _LIVE for key in _differing(has, wanted))
        stale = waits or isinstance(lines, Change)
        subject = f"state of {self.hop}"
        if status != "running":
            yield Change(subject, status, "running", (Action(("pct", "start", str(self.hop.id))),))
        elif stale:
            after = "running, with what has changed\nthe container is started anew: what runs in it ends"
            yield Change(subject, "running", after, (Action(("pct", "reboot", str(self.hop.id))),))
        else:
            yield Kept(subject, "it runs; changes wait for its next start" if has.pending else "it runs")

    def _refuse(self, known: Facts, conf: Conf | None) -> None:
        where, number = str(self.hop), self.hop.id
        node, place = known[pct.NODE], known[pct.PLACES].get(number)
        if node is None:
            raise DFlashError("this is no Proxmox node", where=where, cure="check the chain of the host")
        if place is not None and place[1] != "lxc":
            cure = "give the container another number"
            raise DFlashError(f"{number} is a virtual machine on {place[0]}", where=where, cure=cure)
        if place is not None and place[0] != node:
            cure = f"lead the chain through {place[0]}, or `pct migrate {number} {node}` there"
            raise DFlashError(f"the container is on node {place[0]}, and this is {node}", where=where, cure=cure)
        if conf is None:
            if not self.spec.storage:
                cure = "declare storage as POOL:GIB, such as local-lvm:64"
                raise DFlashError("a new container needs a disk", where=where, cure=cure)
            return
        if lock := conf.keys.get("lock"):
            raise DFlashError(f"it is locked ({lock})", where=where, cure=f"wait, or `pct unlock {number}` there")
        unprivileged = conf.keys.get("unprivileged", "0") == "1"
        if unprivileged == self.spec.privileged:
            is_, wanted = ("un", "") if unprivileged else ("", "un")
            cure = f"declare privileged: {str(not unprivileged).lower()}, or back it up and restore it as the other"
            what = f"the container is {is_}privileged, and declared {wanted}privileged"
            raise DFlashError(what, where=where, cure=cure)

    def _keys(self, conf: Conf | None, paths: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """Keys as they are to be, and those to go."""
        spec, has = self.spec, conf or Conf()
        wanted = {}
        if spec.autostart is not None or conf is None:
            wanted["onboot"] = "0" if spec.autostart is False else "1"
        if spec.cores is not None:
            wanted["cores"] = str(spec.cores)
        if spec.memory_gib is not None:
            wanted["memory"] = str(spec.memory_gib * 1024)
        features = properties(has.keys.get("features", ""))
        if spec.nesting or (spec.nesting is False and features.get("nesting") == "1"):
            wanted["features"] = written({**features, "nesting": "1" if spec.nesting else "0"})
        if spec.network:
            # Without the address it had, the interface would be given a new one.
            wanted["net0"] = written({**properties(has.keys.get("net0", "")), **properties(spec.network)})
        devices, mounts = has.numbered("dev"), has.numbered("mp")
        wanted |= _placed("dev", "path", devices, [{"path": path, "mode": _MODE} for path in paths])
        wanted |= _placed("mp", "mp", mounts, [_mount(mount) for mount in spec.all_mounts])
        nvidia = [key for key, each in devices.items() if nodes.is_nvidia(each.get("path", ""))]
        return wanted, [key for key in nvidia if spec.gpus and devices[key]["path"] not in paths]

    def _create(self, wanted: Mapping[str, str]) -> Change:
        spec = self.spec
        fixed = {"rootfs": spec.storage, "unprivileged": "0" if spec.privileged else "1"}
        words = [word for key, value in {**fixed, **wanted}.items() for word in (f"--{key}", value)]
        argv = ("pct", "create", str(self.hop.id), spec.image, *words)
        after = _shown({"image": spec.image, **fixed, **wanted})
        return Change(f"container {self.hop}", "", after, (Action(argv),))

    def _set(self, has: Conf, wanted: Mapping[str, str], unwanted: Sequence[str]) -> Change | Kept:
        subject = f"configuration of {self.hop}"
        differing = _differing(has, wanted)
        if not differing and not unwanted:
            return Kept(subject, f"all {len(wanted)} declared keys are so" if wanted else "no key is declared")
        words = [word for key in differing for word in (f"--{key}", wanted[key])]
        delete = ["--delete", ",".join(unwanted)] if unwanted else []
        before = {key: has.keys[key] for key in [*differing, *unwanted] if key in has.keys}
        argv = ("pct", "set", str(self.hop.id), *words, *delete)
        return Change(subject, _shown(before), _shown({key: wanted[key] for key in differing}), (Action(argv),))

    def _lines(self, has: Conf, known: Facts) -> Change | Kept:
        spec, subject = self.spec, f"lxc. lines of {self.hop}"
        files = binds.driver_lines(spec, known[driver.DRIVER], str(self.hop))
        wanted = (*binds.memory_lines(spec), *files, *binds.raw_lines(spec))
        missing = tuple(entry for entry in wanted if entry not in has.raw)
        gone = tuple(entry for entry in has.raw if entry not in wanted and self._against(entry, wanted))
        if not missing and not gone:
            return Kept(subject, "they are as declared" if wanted else "none are declared")
        lines = [f"{sign}{key}: {value}\n" for sign, each in (("-", gone), ("+", missing)) for key, value in each]
        argv = ("sh", "-c", EDIT, "sh", f"/etc/pve/lxc/{self.hop.id}.conf", str(len(lines)))
        return Change(subject, binds.shown(gone), binds.shown(missing), (Action(argv, "".join(lines).encode()),))

    def _against(self, entry: Entry, wanted: Sequence[Entry]) -> bool:
        """Whether a line is in the way of the declared ones: a mount at the same place, a key that comes once, or a
        device or driver file of NVIDIA's, which are given otherwise."""
        if entry[0] != lxc.BINDS:
            return not lxc.is_list(entry[0]) and entry[0] in {key for key, _ in wanted}
        targets = {each.target for each in lxc.binds(wanted)}
        for each in lxc.binds([entry]):
            node = bool(self.spec.gpus) and nodes.is_nvidia(each.target)
            library = self.spec.binds_driver and driver.is_driver_file(f"/{each.target}")
            if each.target in targets or node or library:
                return True
        return False


def _mount(mount: Mount) -> dict[str, str]:
    return {"volume": mount.host, "mp": mount.inside, **({"ro": "1"} if mount.read_only else {})}


def _placed(
    kind: str, identity: str, has: Mapping[str, Mapping[str, str]], wanted: Sequence[Mapping[str, str]]
) -> dict[str, str]:
    """Keys such as dev0 for the properties `wanted`: where one of the same `identity` is, else the first free ones.
    What else a person gave one that is there (`gid`, `backup`) it keeps."""
    taken = {normal(each.get(identity, "")): key for key, each in has.items()}
    free = (f"{kind}{number}" for number in itertools.count() if f"{kind}{number}" not in has)
    placed = {}
    for each in wanted:
        key = taken.get(each[identity]) or next(free)
        kept = {name: value for name, value in has.get(key, {}).items() if name != "ro"}
        placed[key] = written({**kept, **each}, "path" if kind == "dev" else "volume")
    return placed


def _differing(has: Conf, wanted: Mapping[str, str]) -> list[str]:
    def parsed(key: str, value: str) -> dict[str, str]:
        return properties(value, "path" if key.startswith("dev") else "volume")

    return [key for key in wanted if key not in has.keys or parsed(key, has.keys[key]) != parsed(key, wanted[key])]


def _shown(values: Mapping[str, str]) -> str:
    return "\n".join(f"{key}: {value}" for key, value in values.items())
