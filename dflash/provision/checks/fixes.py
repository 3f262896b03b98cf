"""What can be done about a fault by itself: the operation that undoes it on the host, by the finding's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dflash.finding import Finding
from dflash.provision.operation import Operation
from dflash.provision.operations.persistence import PersistenceMode
from dflash.provision.operations.uvm import NODE, UvmDevice
from dflash.provision.planning import Named


def _node(found: Finding) -> Operation | None:
    return UvmDevice() if found.subject == NODE else None


FIXES: Mapping[str, Callable[[Finding], Operation | None]] = {
    "no-persistence": lambda found: PersistenceMode(),
    "no-node": _node,
    "stale-node": _node,
}


def fixes_of(findings: Iterable[Finding]) -> list[Named]:
    """The operations that the findings call for, each once."""
    found: dict[Operation, Named] = {}
    for each in findings:
        operation = FIXES[each.name](each) if each.severity != "ok" and each.name in FIXES else None
        if operation is not None:
            found.setdefault(operation, Named(each.name, operation, each.subject))
    return list(found.values())
