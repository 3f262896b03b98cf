"""What a step's process is told, as a file of plain JSON: its own paths, settings, inputs, and nothing secret."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash.pipeline import machines
from dflash.pipeline.launchers import config as launchers
from dflash.pipeline.plan import Plan
from dflash.pipeline.schema import Step
from dflash.pipeline.store import Done, Store
from dflash.validation import plain


def spec_of(
    step: Step, plan: Plan, kinds: str, store: Store, done: Mapping[str, Done], out: Path, log: Path
) -> dict[str, Any]:
    """The spec of a step of `plan` (dflash/pipeline/child.py), for which the steps in `done` have been made. Of secrets
    it has the names."""
    lender = plan.pipeline.step(step.borrows) if step.borrows else None
    takes = {kind: name for kind, name in step.takes.items() if name in done}
    return {
        "kinds": kinds,
        "kind": step.kind.name,
        "config": plain(step.kind.config, step.config),
        "borrowed": lender and {"kind": lender.kind.name, "config": plain(lender.kind.config, lender.config)},
        "inputs": {
            kind: str(store.folder(plan.pipeline.step(name).kind.name, done[name].key)) for kind, name in takes.items()
        },
        "results": {kind: done[name].result for kind, name in takes.items()},
        "out": str(out),
        "root": str(store.root),
        "project": str(plan.project),
        "patterns": list(step.inputs),
        "log": str(log),
        "launcher": launchers.to_json(step.launcher),
        "hosts": machines.to_json(plan.hosts),
        "layout": machines.layouts_of(plan.pipeline, plan.hosts).get(step.name, ()),
        "host": step.host,
        "env": dict(step.env),
        "secrets": list(step.secrets),
    }
