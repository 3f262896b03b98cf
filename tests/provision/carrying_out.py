"""An operation carried out on a real machine: read, plan, act."""

from __future__ import annotations

from dflash.hosts.connection import Connection
from dflash.provision.fact import read
from dflash.provision.operation import Change, Kept, Operation


def carry_out(connection: Connection, operation: Operation) -> list[Change | Kept]:
    """Make the machine as the operation says; its plan, all of which has been done."""
    plan = list(operation.plan(read(connection, operation.facts())))
    for step in plan:
        for action in step.actions if isinstance(step, Change) else ():
            result = connection.run(action.argv, stdin=action.stdin, env={"LC_ALL": "C"})
            said = (result.stdout + result.stderr).decode(errors="replace")
            assert result.code == 0, f"{step.subject}: {action.argv} ended with {result.code}: {said}"
    return plan


def changes(plan: list[Change | Kept]) -> list[str]:
    """The subjects of what was changed."""
    return [step.subject for step in plan if isinstance(step, Change)]
