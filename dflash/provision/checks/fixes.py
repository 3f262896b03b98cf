"""What can be done about a fault by itself: the operation that undoes it on the host, by the finding's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dflash.finding import Finding
from dflash.provision.checks.wanted import Wanted
from dflash.provision.operation import Operation
from dflash.provision.operations.persistence import PersistenceMode
from dflash.provision.operations.uvm import UvmDevice
from dflash.provision.planning import Named

FIXES: Mapping[str, Callable[[Wanted], Operation]] = {
    "no-persistence": lambda want: PersistenceMode(),
    "no-node": lambda want: UvmDevice(),
    "stale-node": lambda want: UvmDevice(),
}


def fixes_of(findings: Iterable[Finding], want: Wanted) -> list[Named]:
    """The operations that the findings call for, each once."""
    found: dict[Operation, Named] = {}
    for each in findings:
        if each.severity != "ok" and each.name in FIXES:
            operation = FIXES[each.name](want)
            found.setdefault(operation, Named(each.name, operation, each.subject))
    return list(found.values())
