"""A file system at its place: a disk with data, or a folder of one that is seen elsewhere too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import DFlashError
from dflash.provision.fact import Fact, Facts
from dflash.provision.facts.files import MOUNTED, Mounted, Status, device_of, real_path, stat_of, table_of
from dflash.provision.operation import Action, Change, Kept
from dflash.provision.operations.writing import append_line


@dataclass(frozen=True)
class Mount:
    """`source` is mounted at `place`. A folder is bound there; a block device is mounted as `type`, as is what is no
    path, such as `server:/export`. With `fstab` it is so after a restart, too; a line that is there is not changed."""

    place: str
    source: str
    type: str = ""
    options: str = ""
    fstab: bool = False
    table: str = "/etc/fstab"

    def facts(self) -> Sequence[Fact[Any]]:
        found: list[Fact[Any]] = [MOUNTED, stat_of(self.place), real_path(self.place)]
        if self._is_path:
            found += [stat_of(self.source), device_of(self.place)]
        return [*found, table_of(self.table)] if self.fstab else found

    def plan(self, known: Facts) -> Iterator[Change | Kept]:
        real = known[real_path(self.place)]
        there = known[MOUNTED].get(real)
        source = known[stat_of(self.source)] if self._is_path else Status()
        place = known[stat_of(self.place)]
        subject = f"mount {self.place}"
        if self._is_path and not source.kind:
            raise DFlashError(f"there is no {self.source}", where=self.place, cure="name what is to be mounted there")
        if there is None:
            make = () if place.kind else (Action(("mkdir", "-p", "--", self.place)),)
            yield Change(subject, "nothing mounted", self.source, (*make, self._mount(source)))
        elif self._is_it(there, source, place, known):
            yield Kept(subject, f"{self.source} is mounted there")
        else:
            what = f"{there.source} ({there.type}) is mounted there, not {self.source}"
            raise DFlashError(what, where=self.place, cure="unmount it there, or declare what is mounted")
        if self.fstab:
            yield self._line(known[table_of(self.table)], source, real)

    @property
    def _is_path(self) -> bool:
        return self.source.startswith("/")

    def _is_it(self, there: Mounted, source: Status, place: Status, known: Facts) -> bool:
        if source.kind == "directory":  # of a bound folder, mountinfo names only the file system that it is on
            return (source.device, source.inode) == (place.device, place.inode)
        if source.kind == "block special file":
            numbers = source.major, source.minor
            return numbers in ((there.major, there.minor), known[device_of(self.place)])
        return there.source == self.source

    def _mount(self, source: Status) -> Action:
        bind = ["bind"] if source.kind == "directory" else []
        options = ",".join([*bind, *([self.options] if self.options else [])])
        words = [*(["-t", self.type] if self.type else []), *(["-o", options] if options else [])]
        return Action(("mount", *words, "--", self.source, self.place))

    def _line(self, table: str | None, source: Status, real: str) -> Change | Kept:
        if table is None:
            raise DFlashError(
                f"{self.table} can not be read", where=self.place, cure="look there what is wrong with it"
            )
        bound = source.kind == "directory"
        # nofail: a disk that is gone must not keep the machine from starting.
        options = ",".join(filter(None, ["bind" if bound else "", self.options, "nofail"]))
        fields = [_escaped(self.source), _escaped(self.place), "none" if bound else self.type or "auto", options]
        subject = f"{self.table} {self.place}"
        for line in table.splitlines():
            words = line.split()
            place = words[1].rstrip("/") if len(words) > 1 else ""
            if not line.lstrip().startswith("#") and place in (fields[1], _escaped(real)):
                if words[:1] == fields[:1]:
                    return Kept(subject, f"it has the line: {' '.join(words)}")
                what = f"{self.table} has another line for it: {' '.join(words)}"
                raise DFlashError(what, where=self.place, cure="make the two agree")
        line = " ".join([*fields, "0", "0"])
        between = "" if not table or table.endswith("\n") else "\n"
        return Change(subject, table, f"{table}{between}{line}\n", (append_line(self.table, line),))


def _escaped(path: str) -> str:
    return path.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
