"""What the verb prewarm does: the closed set of a pipeline's training, compiled and proved on a host."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from dflash.cli import HOME, load, print_json, refuse_root, root_of
from dflash.errors import BusyError, CompilationError, OutOfMemory, StorageError, UsageError
from dflash.training.report import first_input

if TYPE_CHECKING:
    from dflash.hosts.connection import Connection
    from dflash.hosts.inventory import Host
    from dflash.pipeline.schema import Pipeline

ERRORS = {2: UsageError, 5: StorageError, 6: BusyError, 8: CompilationError, 10: OutOfMemory}


def prewarm(*, pipeline: str, host: str, environment: str, root: str, overrides: Sequence[str], as_json: bool) -> None:
    """Pre-warm one host or several for a pipeline's training, and report."""
    from dflash.cli_hosts import connected, everywhere, hosts_of
    from dflash.hosts.inventory import find_host
    from dflash.pipeline.machines import named

    loaded = load(pipeline, overrides)
    request = request_of(loaded, {name: find_host(name, HOME / "hosts.yaml") for name in named(loaded)})
    hosts = [rooted(each, root) for each in hosts_of(host)]

    def warm(each: Host, connection: Connection) -> dict[str, Any]:
        report = warm_host(connection, each, environment, request)
        if not as_json:
            _show(each, report)
        return report

    answers = everywhere(hosts, connected(warm))
    if as_json:
        print_json({"hosts": [{"host": each.name, **report} for each, report in answers]})
    answers.leave()


def request_of(pipeline: Pipeline, hosts: Mapping[str, Host] | None = None) -> dict[str, Any]:
    """What dflash.training.far asks for: the training's configuration, its target's, the buckets, and how many workers
    are on each of its hosts; None of the `hosts` that the pipeline names: as if all were on one."""
    from dflash.pipeline.machines import layouts_of

    steps = [step for step in pipeline.steps if step.kind.name == "prewarm"]
    if len(steps) != 1:
        raise UsageError(f"the pipeline has {len(steps)} steps that use prewarm", where=pipeline.file, cure="keep one")
    (step,) = steps
    assert step.borrows is not None
    taken = {kind: pipeline.step(name).config for kind, name in step.takes.items()}
    train = pipeline.step(step.borrows).config
    counts = () if hosts is None else layouts_of(pipeline, hosts).get(step.name, ())
    lists = {"buckets": list(taken["data"].buckets), "hosts": list(counts)}
    return {"train": asdict(train), "target": asdict(taken["target"]), **lists}


def warm_host(connection: Connection, host: Host, environment: str, request: dict[str, Any]) -> dict[str, Any]:
    """Run it there, saying on standard error how far it is; the report."""
    from dflash.environments.programs import HostPrograms

    report: dict[str, Any] = {}

    def told(line: bytes) -> None:
        said = json.loads(line)
        report.update(said.get("report", {}))
        if "note" in said:
            print(f"{host.name}: {said['note']}", file=sys.stderr, flush=True)
        elif "done" in said:
            print(f"{host.name}: {said['done']}/{said['total']} processes", file=sys.stderr, flush=True)

    programs = HostPrograms(connection, host, environment)
    words = ("dflash.training.far", programs.root, host.name)
    programs.run(*words, errors=ERRORS, stdin=json.dumps(request).encode(), line=told)
    return report


def rooted(host: Host, root: str) -> Host:
    """This machine's root is the project's own or --root, that of a host is in hosts.yaml."""
    if host.chain.is_local:
        return replace(host, root=host.root if host.root and not root else str(root_of(root)))
    refuse_root(root)
    return host


def _show(host: Host, report: dict[str, Any]) -> None:
    for graph in report.get("compiled", []):
        print(f"{graph['seconds']:7.1f} s  {graph['worker']:10}  {graph['name']:12}  {first_input(graph)}")
    if not report["graphs"]:
        print(f"{host.name}: compilation is off, there is nothing to warm")
        return
    how = "from the vault" if report["from_vault"] else f"compiled in {report['compile_s']} s"
    size = f"{report['cache_bytes'] / 1e6:.1f} MB"
    rate = f"hit rate {report['hit_rate']:.0%} in a fresh process ({report['proof_s']} s)"
    print(f"{host.name}: {report['graphs']} graphs, {how}, {size}, {rate}; kept as {report['snapshot'] or 'nothing'}")
